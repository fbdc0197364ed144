/* The driver and the runtime of CUDA, for tests.e2e.simulated_gpu. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef int (*launch_t)(const char*, unsigned, unsigned, unsigned, unsigned, unsigned, void**);
static launch_t on_launch;
void sim_set(launch_t launch) { on_launch = launch; }
int cuModuleLoad(void** m, const char* path) { *m = strdup(path); return 0; }
int cuModuleUnload(void* m) { return 0; }
int cuModuleLoadData(void** m, const void* d) { *m = (void*)d; return 0; }
int cuModuleGetFunction(void** f, void* m, const char* name) { *f = strdup(name); return 0; }
int cuFuncSetAttribute(void* f, int a, int v) { return 0; }
int cuGetErrorString(int c, const char** s) { *s = "simulated driver"; return 0; }
int cuLaunchKernel(void* f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** args, void** extra) {
  return on_launch((const char*)f, x, y, z, bx, shared, args);
}
int cuLaunchKernelEx(const unsigned* config, void* f, void** args, void** extra) {
  return on_launch((const char*)f, config[0], config[1], config[2], config[3], config[6], args);
}
int cudaMalloc(void** p, size_t n) { *p = aligned_alloc(64, (n + 63) / 64 * 64 + 64); return 0; }
int cudaFree(void* p) { free(p); return 0; }
int cudaMemcpy(void* d, const void* s, size_t n, int k) { memcpy(d, s, n); return 0; }
int cudaMemcpyAsync(void* d, const void* s, size_t n, int k, void* t) { memcpy(d, s, n); return 0; }
int cudaEventCreate(void** e) { *e = (void*)1; return 0; }
int cudaEventDestroy(void* e) { return 0; }
int cudaEventQuery(void* e) { return 0; }
int cudaEventRecord(void* e, void* s) { return 0; }
int cudaEventSynchronize(void* e) { return 0; }
int cudaStreamSynchronize(void* s) { return 0; }
int cudaGetDevice(int* d) { *d = 0; return 0; }
int cudaSetDevice(int d) { return 0; }
int cudaGetLastError(void) { return 0; }
const char* cudaGetErrorString(int c) { return "simulated runtime"; }
