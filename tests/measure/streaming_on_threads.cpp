// streaming.cu and attention.cu on the CPU: a thread of the operating system for each CUDA thread, barriers for those of a block and a warp.
// Prints one line a kernel: its name, and the worst deviation from the formula in double precision.
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

struct Place { unsigned x, y, z; };
static thread_local Place threadIdx;
static Place blockIdx, blockDim, gridDim;
#define __device__
#define __global__
#define __shared__ static
#define __expf(x) std::exp(x)
struct uint4 { unsigned x, y, z, w; };
struct float4 { float x, y, z, w; };
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
static unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }
static float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
using std::fmaxf;
using std::fminf;

static std::unique_ptr<std::barrier<>> block_barrier;
static std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;
static unsigned long long lanes[32][32];
static std::mutex atomics;
static void __syncthreads() { block_barrier->arrive_and_wait(); }

template <class T> T from_lane(T value, int lane) {
  int warp = threadIdx.x >> 5;
  memcpy(&lanes[warp][threadIdx.x & 31], &value, sizeof value);
  warp_barriers[warp]->arrive_and_wait();
  T found = value;
  if (lane >= 0 && lane < 32) memcpy(&found, &lanes[warp][lane], sizeof found);
  warp_barriers[warp]->arrive_and_wait();
  return found;
}
template <class T> T __shfl_xor_sync(unsigned, T value, int mask) { return from_lane(value, (threadIdx.x & 31) ^ mask); }
template <class T> T __shfl_up_sync(unsigned, T value, int by) { return from_lane(value, (int)(threadIdx.x & 31) - by); }
static void atomicMax(unsigned long long* at, unsigned long long value) {
  std::lock_guard<std::mutex> guard(atomics);
  if (value > *at) *at = value;
}
static void atomicMin(int* at, int value) {
  std::lock_guard<std::mutex> guard(atomics);
  if (value < *at) *at = value;
}

#include STREAMING
#include ATTENTION

constexpr int ROWS = 2, COLUMNS = 512, THREADS = 64, VOCABULARY = 2000;

static void launch(const std::function<void()>& kernel, unsigned blocks = ROWS, unsigned count = THREADS) {
  gridDim = {blocks, 1, 1};
  blockDim = {count, 1, 1};
  for (unsigned block = 0; block < blocks; ++block) {
    blockIdx = {block, 0, 0};
    block_barrier = std::make_unique<std::barrier<>>(count);
    warp_barriers.clear();
    for (unsigned warp = 0; warp < count / 32; ++warp) warp_barriers.push_back(std::make_unique<std::barrier<>>(32));
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < count; ++number)
      threads.emplace_back([&kernel, number] { threadIdx = {number, 0, 0}; kernel(); });
    for (auto& thread : threads) thread.join();
  }
}

static float drawn() { return 4.0f * (rand() / (float)RAND_MAX - 0.5f); }
static double worst;
static void held(double found, double expected, double floor) {
  worst = std::fmax(worst, std::fabs(found - expected) / (std::fabs(expected) + floor));
}
static void told(const char* name) { printf("%s %g\n", name, worst); worst = 0.0; }
static double from_e4m3(u8 bits) {
  int exponent = (bits >> 3) & 15, mantissa = bits & 7;
  double size = exponent ? std::ldexp(1.0 + mantissa / 8.0, exponent - 7) : std::ldexp(mantissa / 8.0, -6);
  return bits & 0x80 ? -size : size;
}

struct Rows {
  std::vector<Eight> words;
  explicit Rows(int count) : words(count / 8) { for (int i = 0; i < count; ++i) data()[i] = to_bf16(drawn()); }
  bf16* data() { return (bf16*)words.data(); }
  double at(int place) { return from_bf16(data()[place]); }
};

static void norms(Rows& in, Rows& residual, Rows& weight) {
  Rows out = in, added = in, kept = residual;
  launch([&] { rms_norm(out.data(), in.data(), weight.data(), COLUMNS); });
  launch([&] { fused_add_rms_norm(added.data(), kept.data(), weight.data(), COLUMNS); });
  for (int fused = 0; fused < 2; ++fused) {
    for (int row = 0; row < ROWS; ++row) {
      double squares = 0.0;
      auto value = [&](int c) { return in.at(row * COLUMNS + c) + fused * residual.at(row * COLUMNS + c); };
      for (int c = 0; c < COLUMNS; ++c) squares += value(c) * value(c);
      double scale = 1.0 / std::sqrt(squares / COLUMNS + 1e-6);
      for (int c = 0; c < COLUMNS; ++c)
        held((fused ? added : out).at(row * COLUMNS + c), value(c) * scale * weight.at(c), 1e-2);
    }
    told(fused ? "fused_add_rms_norm" : "rms_norm");
  }
}

static void activations(Rows& in) {
  for (int gelu = 0; gelu < 2; ++gelu) {
    constexpr int HALF = COLUMNS / 2;
    Rows out(ROWS * HALF);
    launch([&] { gated_activation(out.data(), in.data(), HALF, gelu); });
    for (int row = 0; row < ROWS; ++row)
      for (int c = 0; c < HALF; ++c) {
        double x = in.at(row * COLUMNS + c), up = in.at(row * COLUMNS + HALF + c);
        double bent = gelu ? 0.5 * x * (1.0 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x))) : x / (1.0 + std::exp(-x));
        held(out.at(row * HALF + c), bent * up, 1e-2);
      }
    told(gelu ? "gelu_and_mul" : "silu_and_mul");
  }
}

static void rotation(Rows& in) {
  Rows turned = in;
  std::vector<float> angles(4 * 128);
  for (auto& one : angles) one = drawn();
  std::vector<long long> positions = {2, 3};
  launch([&] { rope_neox(turned.data(), angles.data(), positions.data(), COLUMNS, 128); });
  for (int row = 0; row < ROWS; ++row)
    for (int at = 0; at < COLUMNS; ++at) {
      int first = row * COLUMNS + at / 128 * 128 + at % 64;
      double a = in.at(first), b = in.at(first + 64), c = angles[positions[row] * 128 + at % 64], s = angles[positions[row] * 128 + 64 + at % 64];
      held(turned.at(row * COLUMNS + at), at % 128 < 64 ? a * c - b * s : b * c + a * s, 1.0);
    }
  told("rope_neox");
}

static void quantisation(Rows& in) {
  const char* names[] = {"quantize_per_tensor", "quantize_per_token", "quantize_per_block"};
  for (int kind = 0; kind < 3; ++kind) {
    std::vector<u64> out(ROWS * COLUMNS / 8);
    std::vector<float> scales(ROWS * COLUMNS / 128, 0.01f);
    u8* bytes = (u8*)out.data();
    launch([&] {
      if (kind == 0) quantize_per_tensor(bytes, in.data(), scales.data(), COLUMNS);
      if (kind == 1) quantize_per_token(bytes, in.data(), scales.data(), COLUMNS);
      if (kind == 2) quantize_per_block(bytes, in.data(), scales.data(), COLUMNS);
    });
    for (int place = 0; place < ROWS * COLUMNS; ++place) {
      double scale = kind == 0 ? scales[0] : kind == 1 ? scales[place / COLUMNS] : scales[place / 128];
      held(from_e4m3(bytes[place]) * scale, in.at(place), 0.02 * scale);
    }
    told(names[kind]);
  }
}

static void choices() {
  alignas(16) static float logits[ROWS * VOCABULARY], shares[ROWS * VOCABULARY];
  for (auto& one : logits) one = drawn();
  long long chosen[ROWS];
  auto better = [&](int row) {
    int count = 0;
    for (int c = 0; c < VOCABULARY; ++c) count += logits[row * VOCABULARY + c] > logits[row * VOCABULARY + chosen[row]];
    return count;
  };
  launch([&] { softmax(shares, logits, VOCABULARY); });
  for (int row = 0; row < ROWS; ++row) {
    double total = 0.0;
    for (int c = 0; c < VOCABULARY; ++c) total += std::exp((double)logits[row * VOCABULARY + c]);
    for (int c = 0; c < VOCABULARY; ++c)
      held(shares[row * VOCABULARY + c], std::exp((double)logits[row * VOCABULARY + c]) / total, 0.0);
  }
  told("softmax");
  launch([&] { argmax(chosen, logits, VOCABULARY); });
  for (int row = 0; row < ROWS; ++row) worst += better(row);
  told("argmax");
  // how often a token outside of the first fifty is drawn
  for (unsigned seed = 1; seed <= 3; ++seed) {
    launch([&] { top_k_top_p(chosen, logits, VOCABULARY, 50, 0.9f, seed); });
    for (int row = 0; row < ROWS; ++row) worst += better(row) > 50;
  }
  told("top_k_top_p");
}

// attention of the last `per` tokens of ROWS / per sequences over pages in another order; rope 0: keys and values apart, in a
// bf16 or an E4M3 cache
static void attention(const char* name, int context, int heads, int kv_heads, int width, int rope, int is_fp8, int splits,
                      int per = 1) {
  int pages_of_row = (context + PAGE - 1) / PAGE, slots = ROWS * pages_of_row * PAGE, stride = width + rope;
  std::vector<int> pages(ROWS * pages_of_row);
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = (int)((i * 5 + 3) % pages.size());
  Rows queries(ROWS * heads * stride), keys(slots * kv_heads * stride), values(slots * kv_heads * stride), out(ROWS * heads * width);
  std::vector<u8> narrow_keys(slots * kv_heads * stride), narrow_values(narrow_keys.size());
  for (size_t i = 0; i < narrow_keys.size(); ++i) {
    narrow_keys[i] = to_fp8(keys.at(i));
    narrow_values[i] = to_fp8(values.at(i));
  }
  auto key = [&](size_t at) { return is_fp8 ? from_e4m3(narrow_keys[at]) : keys.at(at); };
  auto value = [&](size_t at) { return rope ? keys.at(at) : is_fp8 ? from_e4m3(narrow_values[at]) : values.at(at); };
  std::vector<float> parts(ROWS * heads * splits * (width + 2));
  int group = heads / kv_heads, each = rope ? 2 : 4;
  float scale = 1.0f / std::sqrt((float)stride);
  launch([&] {
    if (rope)
      paged_mla_decode(parts.data(), queries.data(), keys.data(), pages.data(), context, heads, width, rope, splits, scale);
    else
      paged_attention(parts.data(), queries.data(), is_fp8 ? (void*)narrow_keys.data() : keys.data(),
                   is_fp8 ? (void*)narrow_values.data() : values.data(), pages.data(), context, per, heads, kv_heads, width, is_fp8, splits, scale);
  }, ROWS * kv_heads * ((group + each - 1) / each) * splits, 128);
  launch([&] { join_parts(out.data(), parts.data(), splits, width); }, ROWS * heads);
  for (int row = 0; row < ROWS; ++row)
    for (int head = 0; head < heads; ++head) {
      int seen = context - per + 1 + row % per;
      std::vector<double> logits(context);
      double total = 0.0;
      auto at = [&](int token) {
        size_t slot = (size_t)pages[row / per * pages_of_row + token / PAGE] * PAGE + token % PAGE;
        return (slot * kv_heads + head / group) * stride;
      };
      for (int token = 0; token < seen; ++token) {
        double logit = 0.0;
        for (int e = 0; e < stride; ++e) logit += queries.at((row * heads + head) * stride + e) * key(at(token) + e);
        total += logits[token] = std::exp(logit * scale);
      }
      for (int e = 0; e < width; ++e) {
        double expected = 0.0;
        for (int token = 0; token < seen; ++token) expected += logits[token] / total * value(at(token) + e);
        held(out.at((row * heads + head) * width + e), expected, 0.1);
      }
    }
  told(name);
}

static void experts() {
  constexpr int EXPERTS = 3, WIDE = 7, DEPTH = 96, COUNT = 13;
  std::vector<int> starts = {0, 1, 1, COUNT};  // one row, none, more than a tile
  Rows rows(COUNT * DEPTH + 8), weights(EXPERTS * WIDE * DEPTH), out(COUNT * WIDE + 8);
  launch([&] { grouped_product(out.data(), rows.data(), weights.data(), starts.data(), WIDE, DEPTH); }, EXPERTS * 4);
  for (int expert = 0; expert < EXPERTS; ++expert)
    for (int row = starts[expert]; row < starts[expert + 1]; ++row)
      for (int c = 0; c < WIDE; ++c) {
        double sum = 0.0;
        for (int d = 0; d < DEPTH; ++d) sum += rows.at(row * DEPTH + d) * weights.at((expert * WIDE + c) * DEPTH + d);
        held(out.at(row * WIDE + c), sum, 1.0);
      }
  told("grouped_product");
}

int main() {
  srand(1);
  Rows in(ROWS * COLUMNS), residual(ROWS * COLUMNS), weight(COLUMNS);
  norms(in, residual, weight);
  activations(in);
  rotation(in);
  quantisation(in);
  choices();
  attention("paged_decode", 37, 6, 1, 64, 0, 0, 3);
  attention("paged_decode_fp8", 50, 8, 2, 128, 0, 1, 1);
  attention("paged_prefill", 45, 4, 2, 64, 0, 0, 2, ROWS);
  attention("paged_mla_decode", 19, 3, 1, 512, 64, 0, 2);
  experts();
}
