// Attention over a paged cache and products of experts, where no library is installed: CUDA cores alone, so that they
// are near the memory's bandwidth at the few rows of a decode step, and far from tensor cores at many. Behind streaming.cu.

__device__ inline float from_fp8(u8 x) {  // E4M3: its exponent is 120 less than that of a float with the same bits
  float size = __uint_as_float(((u32)(x & 0x7f)) << 20) * 1.329227995784916e36f;
  return x & 0x80 ? -size : size;
}

__device__ inline float cached(const void* data, u64 at, int is_fp8) {
  return is_fp8 ? from_fp8(((const u8*)data)[at]) : from_bf16(((const bf16*)data)[at]);
}

__device__ inline float sum_of_warp(float value) {
  for (int lane = 16; lane; lane >>= 1) value += __shfl_xor_sync(0xffffffffu, value, lane);
  return value;
}

constexpr int PAGE = 16, WARPS = 4;

// One block: some heads of a query over one of `splits` parts of the keys that it sees; a lane holds every 32nd element.
// Queries are the last `per` tokens of each sequence of `context` keys, and see those up to their own.
// parts: for each (row, head, split) value_width sums, then their largest logit and total weight.
template <int HEADS, int EACH>
__device__ void attend(float* parts, const bf16* queries, const void* keys, const void* values, const int* pages, int context,
                       int per, int heads, int kv_heads, int width, int value_width, int value_stride, int is_fp8, int splits,
                       float scale) {
  __shared__ float weights[WARPS][HEADS], tops[WARPS][HEADS], sums[WARPS][EACH * 32];
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = heads / kv_heads, chunks = (group + HEADS - 1) / HEADS;
  int split = blockIdx.x % splits, rest = blockIdx.x / splits;
  int chunk = rest % chunks, kv_head = rest / chunks % kv_heads, row = rest / chunks / kv_heads;
  int first = kv_head * group + chunk * HEADS, pages_of_row = (context + PAGE - 1) / PAGE;
  int seen = context - per + 1 + row % per;
  float query[HEADS][EACH], sum[HEADS][EACH], top[HEADS], weight[HEADS];
  for (int h = 0; h < HEADS; ++h) {
    top[h] = -1e30f;
    weight[h] = 0.0f;
    bool used = chunk * HEADS + h < group;
    for (int e = 0; e < EACH; ++e) {
      int at = e * 32 + lane;
      sum[h][e] = 0.0f;
      query[h][e] = used && at < width ? scale * from_bf16(queries[((u64)row * heads + first + h) * width + at]) : 0.0f;
    }
  }
  int each = (seen + splits - 1) / splits, last = (split + 1) * each < seen ? (split + 1) * each : seen;
  for (int token = split * each + warp; token < last; token += WARPS) {
    u64 slot = (u64)pages[(u64)(row / per) * pages_of_row + token / PAGE] * PAGE + token % PAGE;
    u64 key_at = (slot * kv_heads + kv_head) * width, value_at = (slot * kv_heads + kv_head) * value_stride;
    float key[EACH], value[EACH];
    for (int e = 0; e < EACH; ++e) {
      int at = e * 32 + lane;
      key[e] = at < width ? cached(keys, key_at + at, is_fp8) : 0.0f;
      value[e] = at < value_width ? cached(values, value_at + at, is_fp8) : 0.0f;
    }
    for (int h = 0; h < HEADS; ++h) {
      float logit = 0.0f;
      for (int e = 0; e < EACH; ++e) logit += query[h][e] * key[e];
      logit = sum_of_warp(logit);
      float higher = fmaxf(top[h], logit), kept = __expf(top[h] - higher), own = __expf(logit - higher);
      top[h] = higher;
      weight[h] = weight[h] * kept + own;
      for (int e = 0; e < EACH; ++e) sum[h][e] = sum[h][e] * kept + own * value[e];
    }
  }
  for (int h = 0; h < HEADS; ++h) {
    __syncthreads();
    if (lane == 0) {
      tops[warp][h] = top[h];
      weights[warp][h] = weight[h];
    }
    for (int e = 0; e < EACH; ++e) sums[warp][e * 32 + lane] = sum[h][e];
    __syncthreads();
    float highest = tops[0][h], total = 0.0f;
    for (int w = 1; w < WARPS; ++w) highest = fmaxf(highest, tops[w][h]);
    for (int w = 0; w < WARPS; ++w) total += weights[w][h] * __expf(tops[w][h] - highest);
    if (chunk * HEADS + h < group) {
      float* part = parts + (((u64)row * heads + first + h) * splits + split) * (value_width + 2);
      for (int at = threadIdx.x; at < value_width; at += WARPS * 32) {
        float all = 0.0f;
        for (int w = 0; w < WARPS; ++w) all += sums[w][at] * __expf(tops[w][h] - highest);
        part[at] = all;
      }
      if (threadIdx.x == 0) {
        part[value_width] = highest;
        part[value_width + 1] = total;
      }
    }
  }
}

// blocks: queries x kv_heads x chunks of 4 heads x splits; 128 threads
extern "C" __global__ void paged_attention(float* parts, const bf16* queries, const void* keys, const void* values,
                                           const int* pages, int context, int per, int heads, int kv_heads, int width, int is_fp8,
                                           int splits, float scale) {
  attend<4, 8>(parts, queries, keys, values, pages, context, per, heads, kv_heads, width, width, width, is_fp8, splits, scale);
}

// latent attention after absorption: keys of rank + rope elements, whose first rank elements are the values
extern "C" __global__ void paged_mla_decode(float* parts, const bf16* queries, const void* latents, const int* pages, int context,
                                            int heads, int rank, int rope, int splits, float scale) {
  attend<2, 18>(parts, queries, latents, latents, pages, context, 1, heads, 1, rank + rope, rank, rank + rope, 0, splits, scale);
}

// one block a row and head
extern "C" __global__ void join_parts(bf16* output, const float* parts, int splits, int width) {
  const float* part = parts + (u64)blockIdx.x * splits * (width + 2);
  float highest = -1e30f, total = 0.0f;
  for (int s = 0; s < splits; ++s) highest = fmaxf(highest, part[s * (width + 2) + width]);
  for (int s = 0; s < splits; ++s)
    total += part[s * (width + 2) + width + 1] * __expf(part[s * (width + 2) + width] - highest);
  for (int at = threadIdx.x; at < width; at += blockDim.x) {
    float all = 0.0f;
    for (int s = 0; s < splits; ++s) all += part[s * (width + 2) + at] * __expf(part[s * (width + 2) + width] - highest);
    output[(u64)blockIdx.x * width + at] = to_bf16(all / total);
  }
}

// rows of each expert times its weights (columns x depth): output[row] = weights[expert] rows[row]; rows are in the order of
// experts, those of expert e from starts[e] to starts[e + 1]. Blocks: experts x column blocks; a warp a column
extern "C" __global__ void grouped_product(bf16* output, const bf16* rows, const bf16* weights, const int* starts, int columns,
                                           int depth) {
  constexpr int TILE = 8;
  int lane = threadIdx.x & 31, warps = blockDim.x >> 5, blocks = (columns + warps - 1) / warps;
  int expert = blockIdx.x / blocks, column = blockIdx.x % blocks * warps + (threadIdx.x >> 5);
  if (column >= columns) return;
  const bf16* weight = weights + ((u64)expert * columns + column) * depth;
  for (int first = starts[expert]; first < starts[expert + 1]; first += TILE) {
    int count = starts[expert + 1] - first < TILE ? starts[expert + 1] - first : TILE;
    float sum[TILE] = {};
    for (int at = lane; at < depth; at += 32) {
      float factor = from_bf16(weight[at]);
      for (int r = 0; r < TILE; ++r)
        if (r < count) sum[r] += factor * from_bf16(rows[(u64)(first + r) * depth + at]);
    }
    for (int r = 0; r < TILE; ++r) {
      float total = sum_of_warp(sum[r]);
      if (lane == 0 && r < count) output[(u64)(first + r) * columns + column] = to_bf16(total);
    }
  }
}

// int32 pages of each sequence, scattered over the cache, and where the rows of each expert start when all get equally many
extern "C" __global__ void fill_pages(int* pages, u64 count, u32 step) {
  for (u64 at = blockIdx.x * (u64)blockDim.x + threadIdx.x; at < count; at += (u64)gridDim.x * blockDim.x)
    pages[at] = (int)(at * step % count);
}
extern "C" __global__ void fill_starts(int* starts, int experts, int rows) {
  for (int at = threadIdx.x; at <= experts; at += blockDim.x) starts[at] = (int)((u64)at * rows / experts);
}
