// The portable training kernels: each formula as training_kernels.h states it, one element at a time.
#include "butterfly/kernel/training/training_attention_scratch.h"
#include "butterfly/kernel/training/training_kernels.h"
#include "butterfly/kernel/training/training_math_inl.h"

namespace butterfly {
namespace {

void rms_norm(const float* x, const float* weight, float epsilon, long n, float* y, float* inverse) {
  double squares = 0.0;
  for (long i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
  const float r = 1.0f / __builtin_sqrtf(static_cast<float>(squares / static_cast<double>(n)) + epsilon);
  for (long i = 0; i < n; ++i) y[i] = x[i] * r * weight[i];
  *inverse = r;
}

// dL/dx = r (g - x r^2 mean(g x)), g = dy * weight.
void rms_norm_backward(const float* dy, const float* x, const float* weight, float inverse, long n, float* dx,
                       float* dweight) {
  double dot = 0.0;
  for (long i = 0; i < n; ++i) dot += static_cast<double>(dy[i] * weight[i]) * x[i];
  const float shift = static_cast<float>(dot / static_cast<double>(n)) * inverse * inverse;
  for (long i = 0; i < n; ++i) {
    dx[i] += inverse * (dy[i] * weight[i] - x[i] * shift);
    dweight[i] += dy[i] * x[i] * inverse;
  }
}

void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, long n, float* y, float* mean,
                float* inverse) {
  double sum = 0.0;
  for (long i = 0; i < n; ++i) sum += x[i];
  const float centre = static_cast<float>(sum / static_cast<double>(n));
  double squares = 0.0;
  for (long i = 0; i < n; ++i) squares += static_cast<double>(x[i] - centre) * (x[i] - centre);
  const float r = 1.0f / __builtin_sqrtf(static_cast<float>(squares / static_cast<double>(n)) + epsilon);
  for (long i = 0; i < n; ++i) y[i] = (x[i] - centre) * r * weight[i] + (bias != nullptr ? bias[i] : 0.0f);
  *mean = centre;
  *inverse = r;
}

// With h = (x - mean) r and g = dy * weight: dL/dx = r (g - mean(g) - h mean(g h)).
void layer_norm_backward(const float* dy, const float* x, const float* weight, float mean, float inverse, long n,
                         float* dx, float* dweight, float* dbias) {
  double sum = 0.0;
  double dot = 0.0;
  for (long i = 0; i < n; ++i) {
    const double g = dy[i] * weight[i];
    sum += g;
    dot += g * ((x[i] - mean) * inverse);
  }
  const auto sum_mean = static_cast<float>(sum / static_cast<double>(n));
  const auto dot_mean = static_cast<float>(dot / static_cast<double>(n));
  for (long i = 0; i < n; ++i) {
    const float h = (x[i] - mean) * inverse;
    dx[i] += inverse * (dy[i] * weight[i] - sum_mean - h * dot_mean);
    dweight[i] += dy[i] * h;
    if (dbias != nullptr) dbias[i] += dy[i];
  }
}

void rope(float* x, const float* cos, const float* sin, float direction, long pairs, bool adjacent) {
  const long step = adjacent ? 2 : 1;
  const long partner = adjacent ? 1 : pairs;
  for (long i = 0; i < pairs; ++i) {
    float* a = x + i * step;
    const float first = a[0];
    const float second = a[partner];
    a[0] = first * cos[i] - second * (direction * sin[i]);
    a[partner] = first * (direction * sin[i]) + second * cos[i];
  }
}

void silu_mul(const float* gate, const float* up, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = gate[i] * train_sigmoid(gate[i]) * up[i];
}

// silu'(x) = s (1 + x (1 - s)), s = sigmoid(x).
void silu_mul_backward(const float* dy, const float* gate, const float* up, long n, float* dgate, float* dup) {
  for (long i = 0; i < n; ++i) {
    const float g = gate[i];
    const float s = train_sigmoid(g);
    const float dy_up = dy[i] * up[i];
    dup[i] = dy[i] * g * s;
    dgate[i] = dy_up * s * (1.0f + g * (1.0f - s));
  }
}

void gelu(const float* x, long n, float* y) {
  for (long i = 0; i < n; ++i) {
    y[i] = x[i] * train_sigmoid(kGeluTwice * (x[i] + kGeluCubic * x[i] * x[i] * x[i]));
  }
}

// gelu'(x) = s + x s (1 - s) 2 u', s = sigmoid(2 u).
void gelu_backward(const float* dy, const float* x, long n, float* dx) {
  for (long i = 0; i < n; ++i) {
    const float square = kGeluCubic * x[i] * x[i];
    const float s = train_sigmoid(kGeluTwice * (x[i] + x[i] * square));
    dx[i] = dy[i] * (s + x[i] * s * (1.0f - s) * kGeluTwice * (1.0f + 3.0f * square));
  }
}

/// erfc(|x| / sqrt 2) / 2: what the normal distribution has beyond |x|; `bell` is exp(-x^2 / 2).
float normal_tail(float x, float* bell) {
  const float z = __builtin_fabsf(x) * kRootHalf;
  *bell = train_exp(-(z * z));
  const float t = 1.0f / (1.0f + kErfcP * z);
  float sum = kErfcA[kErfcTerms - 1];
  for (int i = kErfcTerms - 2; i >= 0; --i) sum = sum * t + kErfcA[i];
  return 0.5f * sum * t * *bell;
}

void gelu_erf(const float* x, long n, float* y) {
  for (long i = 0; i < n; ++i) {
    float bell = 0.0f;
    const float tail = normal_tail(x[i], &bell);
    y[i] = x[i] * (x[i] < 0.0f ? tail : 1.0f - tail);
  }
}

// gelu_erf'(x) = P(x) + x p(x), P and p the normal distribution and its density.
void gelu_erf_backward(const float* dy, const float* x, long n, float* dx) {
  for (long i = 0; i < n; ++i) {
    float bell = 0.0f;
    const float tail = normal_tail(x[i], &bell);
    dx[i] = dy[i] * ((x[i] < 0.0f ? tail : 1.0f - tail) + x[i] * kNormalDensity * bell);
  }
}

void cap_values(float cap, long n, float* y, float* slope) {
  for (long i = 0; i < n; ++i) {
    const float t = train_tanh(y[i] / cap);
    y[i] = cap * t;
    slope[i] = 1.0f - t * t;
  }
}

float dot(const float* x, const float* y, long n) {
  float sum = 0.0f;
  for (long i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

void axpy(float scale, const float* x, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] += scale * x[i];
}

float cap_score(float cap, float score) {
  return cap != 0.0f ? cap * train_tanh(score / cap) : score;
}

void attention(const TrainAttentionArgs& a) {
  float* scores = a.scratch;  // of one row
  for (long t = 0; t < a.seq; ++t) {
    const long first = a.first_key(t);
    float largest = -__builtin_inff();
    for (long j = first; j <= t; ++j) {
      scores[j] = cap_score(a.cap, a.scale * dot(a.q + t * a.q_stride, a.k + j * a.k_stride, a.head_dim));
      largest = scores[j] > largest ? scores[j] : largest;
    }
    float* out = a.out + t * a.out_stride;
    for (long d = 0; d < a.head_dim; ++d) out[d] = 0.0f;
    double sum = 0.0;
    for (long j = first; j <= t; ++j) {
      const float p = train_exp(scores[j] - largest);
      sum += p;
      axpy(p, a.v + j * a.v_stride, a.head_dim, out);
    }
    for (long d = 0; d < a.head_dim; ++d) out[d] /= static_cast<float>(sum);
    a.log_sum_exp[t] = largest + static_cast<float>(train_log(sum));
  }
}

// p = exp(s - log_sum_exp), s the capped score, whose slope is 1 - (s / cap)^2; dp = dout . v; ds = p (dp - dout .
// out); the last matmul is the sum of p dp over the row.
void attention_backward(const TrainAttentionGradientArgs& b) {
  const TrainAttentionArgs& a = b.forward;
  for (long t = 0; t < a.seq; ++t) {
    const float* q = a.q + t * a.q_stride;
    const float* dout = b.dout + t * b.dout_stride;
    float* dq = b.dq + t * b.dq_stride;
    const float mean = dot(dout, a.out + t * a.out_stride, a.head_dim);
    for (long d = 0; d < a.head_dim; ++d) dq[d] = 0.0f;
    for (long j = a.first_key(t); j <= t; ++j) {
      const float* k = a.k + j * a.k_stride;
      const float score = cap_score(a.cap, a.scale * dot(q, k, a.head_dim));
      const float capped = a.cap != 0.0f ? score / a.cap : 0.0f;
      const float p = train_exp(score - a.log_sum_exp[t]);
      const float slope = a.scale * (1.0f - capped * capped);
      const float ds = slope * p * (dot(dout, a.v + j * a.v_stride, a.head_dim) - mean);
      axpy(ds, k, a.head_dim, dq);
      axpy(ds, q, a.head_dim, b.dk + j * b.dk_stride);
      axpy(p, dout, a.head_dim, b.dv + j * b.dv_stride);
    }
  }
}

float softmax_cross_entropy(float* logits, long vocab, long target, float scale) {
  float largest = -__builtin_inff();
  for (long i = 0; i < vocab; ++i) largest = logits[i] > largest ? logits[i] : largest;
  const float wanted = logits[target] - largest;
  double sum = 0.0;
  for (long i = 0; i < vocab; ++i) {
    logits[i] = train_exp(logits[i] - largest);
    sum += logits[i];
  }
  const auto factor = static_cast<float>(scale / sum);
  for (long i = 0; i < vocab; ++i) logits[i] *= factor;
  logits[target] -= scale;
  return static_cast<float>(train_log(sum)) - wanted;
}

void adamw(const AdamwArgs& args, long n, const float* gradient, float* weight, float* m, float* v) {
  for (long i = 0; i < n; ++i) {
    const float g = gradient[i] * args.gradient_scale;
    m[i] = args.beta1 * m[i] + (1.0f - args.beta1) * g;
    v[i] = args.beta2 * v[i] + (1.0f - args.beta2) * (g * g);
    const float step = m[i] * args.correction1 / (__builtin_sqrtf(v[i] * args.correction2) + args.epsilon);
    weight[i] -= args.rate * (step + args.decay * weight[i]);
  }
}

void sgd(float rate, float momentum, float decay, float gradient_scale, long n, const float* gradient, float* weight,
         float* momentum_buffer) {
  for (long i = 0; i < n; ++i) {
    float step = gradient[i] * gradient_scale + decay * weight[i];
    if (momentum_buffer != nullptr) {
      step += momentum * momentum_buffer[i];
      momentum_buffer[i] = step;
    }
    weight[i] -= rate * step;
  }
}

void add(const float* x, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] += x[i];
}

void add_scaled(const float* x, float scale, long n, float* y) {
  axpy(scale, x, n, y);
}

double sum_of_squares(const float* x, long n) {
  double sum = 0.0;
  for (long i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

void floats_to_bf16(const float* x, long n, unsigned short* y) {
  for (long i = 0; i < n; ++i) {
    const unsigned bits = __builtin_bit_cast(unsigned, x[i]);
    const bool number = (bits & 0x7fffffffu) <= 0x7f800000u;
    // NaN is made quiet and keeps what fits of its payload.
    y[i] = static_cast<unsigned short>(number ? (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 : (bits >> 16) | 0x40u);
  }
}

void bf16_to_floats(const unsigned short* x, long n, float* y) {
  for (long i = 0; i < n; ++i) y[i] = __builtin_bit_cast(float, static_cast<unsigned>(x[i]) << 16);
}

}  // namespace

long train_attention_scratch(long seq, long head_dim) {
  return AttentionScratch::floats(seq, head_dim);
}

const TrainingKernels kReferenceTrainingKernels = {
    "reference",
    rms_norm,
    rms_norm_backward,
    layer_norm,
    layer_norm_backward,
    rope,
    silu_mul,
    silu_mul_backward,
    gelu,
    gelu_backward,
    gelu_erf,
    gelu_erf_backward,
    cap_values,
    attention,
    attention_backward,
    softmax_cross_entropy,
    adamw,
    sgd,
    add,
    add_scaled,
    sum_of_squares,
    floats_to_bf16,
    bf16_to_floats,
};

}  // namespace butterfly
