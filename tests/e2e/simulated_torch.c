/* What torch has for CUDA and is not a kernel with a sibling for the CPU, for tests.e2e.simulated_gpu. */
#include <stdint.h>
extern int32_t aoti_torch_device_type_cpu(void);
int32_t aoti_torch_device_type_cuda(void) { return aoti_torch_device_type_cpu(); }
int aoti_torch_create_cuda_stream_guard(void* s, int d, void** g) { *g = 0; return 0; }
int aoti_torch_delete_cuda_stream_guard(void* g) { return 0; }
int aoti_torch_create_cuda_guard(int d, void** g) { *g = 0; return 0; }
int aoti_torch_delete_cuda_guard(void* g) { return 0; }
int aoti_torch_cuda_guard_set_index(void* g, int d) { return 0; }
int aoti_torch_get_current_cuda_stream(int d, void** s) { *s = 0; return 0; }
typedef int (*attention_t)(void*, void*, void*, void*, int, double*, void**);
static attention_t on_attention;
void sim_set_attention(attention_t f) { on_attention = f; }
int aoti_torch_cuda__scaled_dot_product_efficient_attention(void* q, void* k, void* v, void** bias,
    int32_t lse, double p, int32_t causal, double* scale, void** r0, void** r1, void** r2, void** r3) {
  void* out[2] = {0, (void*)1};
  int code = on_attention(q, k, v, bias ? *bias : 0, causal, scale, out);
  *r0 = out[0]; if (r1) *r1 = 0; if (r2) *r2 = 0; if (r3) *r3 = 0;
  return code;
}
int aoti_torch_cuda__scaled_dot_product_flash_attention(void* q, void* k, void* v, double p,
    int32_t causal, int32_t mask, double* scale, void** r0, void** r1, void** r2, void** r3, int64_t* r4,
    int64_t* r5, void** r6, void** r7, void** r8) {
  void* out[2] = {0, 0};
  int code = on_attention(q, k, v, 0, causal, scale, out);
  *r0 = out[0]; if (r1) *r1 = 0; if (r2) *r2 = 0; if (r3) *r3 = 0;
  if (r6) *r6 = 0; if (r7) *r7 = 0; if (r8) *r8 = 0;
  return code;
}
int aoti_torch_cuda__scaled_dot_product_cudnn_attention(void* q, void* k, void* v, void** bias, int32_t lse,
    double p, int32_t causal, int32_t mask, double* scale, void** r0, void** r1, void** r2, void** r3,
    int64_t* r4, int64_t* r5, void** r6, void** r7, void** r8) {
  void* out[2] = {0, 0};
  int code = on_attention(q, k, v, bias ? *bias : 0, causal, scale, out);
  *r0 = out[0]; if (r1) *r1 = 0; if (r2) *r2 = 0; if (r3) *r3 = 0;
  if (r6) *r6 = 0; if (r7) *r7 = 0; if (r8) *r8 = 0;
  return code;
}

extern int32_t aoti_torch_dtype_float32(void);
extern int aoti_torch_get_dtype(void*, int32_t*), aoti_torch_get_dim(void*, int64_t*);
extern int aoti_torch_get_sizes(void*, int64_t**), aoti_torch_get_strides(void*, int64_t**);
extern int aoti_torch_copy_(void* to, void* from, int32_t is_async), aoti_torch_delete_tensor_object(void*);
extern int aoti_torch_empty_strided(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, void**);
extern int aoti_torch_cpu_histc(void*, int64_t, double, double, void**);
static int converted(void* x, int32_t dtype, void** out) {
  int64_t rank, *sizes, *strides;
  aoti_torch_get_dim(x, &rank), aoti_torch_get_sizes(x, &sizes), aoti_torch_get_strides(x, &strides);
  return aoti_torch_empty_strided(rank, sizes, strides, dtype, aoti_torch_device_type_cpu(), 0, out)
      || aoti_torch_copy_(*out, x, 0);
}
/* The kernel of the CPU counts floating-point numbers only. */
int aoti_torch_cuda_histc(void* x, int64_t bins, double min, double max, void** out) {
  int32_t dtype;
  void *floats, *counts;
  int code = aoti_torch_get_dtype(x, &dtype) || converted(x, aoti_torch_dtype_float32(), &floats)
      || aoti_torch_cpu_histc(floats, bins, min, max, &counts) || converted(counts, dtype, out);
  return code || aoti_torch_delete_tensor_object(floats) || aoti_torch_delete_tensor_object(counts);
}
