// The table of single-threaded training kernels of one instruction set: forward and backward on fp32 rows. Unlike
// kernels.h, implementations agree within rounding, not in bits; one implementation gives the same bits whatever the
// number of threads, since callers cut work along rows and columns alone and sums over rows are made of fixed chunks.
// Tables are immutable and thread-safe. Callers own all memory. A plain header: per-ISA files include it.
#pragma once

namespace butterfly {

/// Rows whose contributions to a column sum (gradients of norms and biases) are added in one chain; callers keep one
/// partial per chunk and add the chunks in a binary tree.
inline constexpr long kGradientChunkRows = 64;

/// Causal attention of one query head over one sequence, never holding [seq, seq]. Row t sees keys [0, t], with a
/// window the last `window` of them. Scores are multiplied by `scale`; with a cap they become cap * tanh(score / cap).
struct TrainAttentionArgs {
  long seq = 0;
  long head_dim = 0;
  float scale = 1.0f;
  const float* q = nullptr;  // [seq, head_dim], rows `q_stride` elements apart; k and v likewise
  const float* k = nullptr;
  const float* v = nullptr;
  long q_stride = 0, k_stride = 0, v_stride = 0;
  float* out = nullptr;  // [seq, head_dim]
  long out_stride = 0;
  float* log_sum_exp = nullptr;  // [seq]: of the scaled, capped scores of each row; written forward, read backward
  float* scratch = nullptr;      // train_attention_scratch(seq, head_dim) floats, 64-byte aligned
  long window = 0;               // 0: none
  float cap = 0.0f;              // 0: none

  /// The first key that row t sees.
  long first_key(long t) const { return window > 0 && t >= window ? t - window + 1 : 0; }
};

/// Gradients of the same; dk and dv are added to (several query heads share one), dq is written.
struct TrainAttentionGradientArgs {
  TrainAttentionArgs forward{};  // with `out` as the forward pass left it
  const float* dout = nullptr;   // [seq, head_dim]
  long dout_stride = 0;
  float* dq = nullptr;
  float* dk = nullptr;
  float* dv = nullptr;
  long dq_stride = 0, dk_stride = 0, dv_stride = 0;
};
long train_attention_scratch(long seq, long head_dim);

/// https://arxiv.org/abs/1711.05101, with the bias corrections of https://arxiv.org/abs/1412.6980:
/// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; w -= rate (m c1 / (sqrt(v c2) + epsilon) + decay w).
struct AdamwArgs {
  float rate = 0.0f;
  float beta1 = 0.9f, beta2 = 0.95f;
  float epsilon = 1e-8f;
  float decay = 0.0f;
  float correction1 = 1.0f;     // 1 / (1 - beta1^t)
  float correction2 = 1.0f;     // 1 / (1 - beta2^t)
  float gradient_scale = 1.0f;  // g is multiplied by it first: clipping and the mean over tokens
};

struct TrainingKernels {
  const char* name;

  /// y = x * r * weight with r = 1 / sqrt(mean(x^2) + epsilon); r is kept in `inverse`.
  void (*rms_norm)(const float* x, const float* weight, float epsilon, long n, float* y, float* inverse);
  /// dx += gradient through the norm; dweight += dy * x * r, for one row.
  void (*rms_norm_backward)(const float* dy, const float* x, const float* weight, float inverse, long n, float* dx,
                            float* dweight);

  /// y = (x - mean) * r * weight + bias; bias may be null.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float epsilon, long n, float* y,
                     float* mean, float* inverse);
  /// dbias may be null.
  void (*layer_norm_backward)(const float* dy, const float* x, const float* weight, float mean, float inverse, long n,
                              float* dx, float* dweight, float* dbias);

  /// Rotates `pairs` pairs in place, as Kernels::rope; the gradient is the rotation back (sine negated by the caller
  /// through `direction` = -1).
  void (*rope)(float* x, const float* cos, const float* sin, float direction, long pairs, bool adjacent);

  /// y = silu(gate) * up, and its gradients (written).
  void (*silu_mul)(const float* gate, const float* up, long n, float* y);
  void (*silu_mul_backward)(const float* dy, const float* gate, const float* up, long n, float* dgate, float* dup);
  /// y = gelu_tanh(x); dx = dy * gelu'(x) (written; dx may be dy).
  void (*gelu)(const float* x, long n, float* y);
  void (*gelu_backward)(const float* dy, const float* x, long n, float* dx);
  /// The same for gelu_erf(x) = x * (1 + erf(x / sqrt 2)) / 2, erf within 1.5e-7.
  void (*gelu_erf)(const float* x, long n, float* y);
  void (*gelu_erf_backward)(const float* dy, const float* x, long n, float* dx);
  /// y = cap * tanh(y / cap); slope = dy/dy before, 1 - tanh^2.
  void (*cap_values)(float cap, long n, float* y, float* slope);

  void (*attention)(const TrainAttentionArgs& args);
  void (*attention_backward)(const TrainAttentionGradientArgs& args);

  /// One row of logits against its target: returns -log softmax(logits)[target] and turns the row into
  /// (softmax - onehot) * scale in place.
  float (*softmax_cross_entropy)(float* logits, long vocab, long target, float scale);

  void (*adamw)(const AdamwArgs& args, long n, const float* gradient, float* weight, float* m, float* v);
  /// Momentum buffer b = momentum * b + g + decay * w; w -= rate * b. b may be null: no momentum.
  void (*sgd)(float rate, float momentum, float decay, float gradient_scale, long n, const float* gradient,
              float* weight, float* momentum_buffer);

  void (*add)(const float* x, long n, float* y);                      // y += x
  void (*add_scaled)(const float* x, float scale, long n, float* y);  // y += scale * x
  double (*sum_of_squares)(const float* x, long n);                   // one fixed order for each n
  void (*floats_to_bf16)(const float* x, long n, unsigned short* y);  // nearest, ties to even
  void (*bf16_to_floats)(const unsigned short* x, long n, float* y);
};

extern const TrainingKernels kReferenceTrainingKernels;
#ifdef __x86_64__
extern const TrainingKernels kAvx2TrainingKernels;
extern const TrainingKernels kAvx512TrainingKernels;
#endif

}  // namespace butterfly
