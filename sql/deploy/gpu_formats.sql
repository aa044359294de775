-- Arithmetic and activation width of each number format on each GPU: native if the tensor cores support it, else 16 bit
with rates as (
  unpivot (select gpu, fp32_flops_per_s as fp32, fp16_flops_per_s as fp16, bf16_flops_per_s as bf16, fp8_flops_per_s as fp8,
                  fp4_flops_per_s as fp4, int8_flops_per_s as int8 from gpus)
  on fp32, fp16, bf16, fp8, fp4, int8 into name math value flops_per_s
),
sixteen_bit as (
  select gpu, case when bf16_flops_per_s is null then 'fp16' else 'bf16' end as math from gpus
)
select
  sixteen_bit.gpu,
  number_formats.format,
  number_formats.weight_bits,
  case when rates.gpu is not null then number_formats.activation_bits else 16 end as activation_bits,
  case when rates.gpu is not null then number_formats.math else sixteen_bit.math end as math,
  rates.gpu is not null as native,
  rates.gpu is not null and number_formats.activation_bits < 16 as quantizes_activations
from sixteen_bit
cross join number_formats
left join rates on rates.gpu = sixteen_bit.gpu and rates.math = number_formats.requires
