#include "butterfly/kernel/training/gradient_rows_inl.h"

namespace butterfly {

const GradientRows kAvx512GradientRows{.name = "avx512",
                                       .encode_bf16 = encode_bf16,
                                       .decode_bf16 = decode_bf16,
                                       .encode_int8 = encode_int8,
                                       .decode_int8 = decode_int8};

}  // namespace butterfly
