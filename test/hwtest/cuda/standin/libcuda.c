/*
 * A stand-in for libcuda.so.1 with the functions that the programs of the hardware test use. One thread is the GPU: it runs one
 * kernel after the other. It shows that the programs call in the right order and keep their queue; it shows nothing about CUDA.
 * An iteration lasts 10 ns.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { QUEUE = 1024, OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_CONTEXT = 201, MEMORY_MIB = 1024 };

static struct {
	uint32_t iterations, number;
	volatile uint32_t *page;
} queue[QUEUE];
static unsigned first, count;
static size_t allocated;
static int context, registered;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static void *gpu(void *unused)
{
	pthread_mutex_lock(&lock);
	for (;;) {
		while (count == 0)
			pthread_cond_wait(&changed, &lock);
		uint64_t ns = 10ull * queue[first].iterations;
		pthread_mutex_unlock(&lock);
		nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)}, NULL);
		pthread_mutex_lock(&lock);
		*queue[first].page = queue[first].number;
		first = (first + 1) % QUEUE;
		count--;
		pthread_cond_broadcast(&changed);
	}
	return unused;
}

int cuInit(unsigned flags) { return flags ? INVALID : OK; }
int cuDeviceGet(int *d, int n) { return *d = n, n ? INVALID : OK; }
int cuDeviceGetName(char *s, int n, int d) { return d ? INVALID : (snprintf(s, (size_t)n, "stand-in"), OK); }
int cuDeviceGetAttribute(int *v, int what, int d) { return what != 16 || d ? INVALID : (*v = 4, OK); }
int cuDevicePrimaryCtxRetain(void **c, int d) { return *c = &context, d; }
int cuGetErrorName(int e, const char **s) { return *s = e == OUT_OF_MEMORY ? "OUT_OF_MEMORY" : "STAND_IN_ERROR", OK; }
int cuStreamCreate(void **s, unsigned flags) { return *s = &first, flags > 1 || !context ? NO_CONTEXT : OK; }

int cuCtxSetCurrent(void *c)
{
	pthread_t t;
	context = c == &context;
	return context && pthread_create(&t, NULL, gpu, NULL) == 0 ? OK : INVALID;
}

int cuMemAlloc_v2(unsigned long long *p, size_t n)
{
	if (!context || n == 0)
		return NO_CONTEXT;
	if (allocated + n > (size_t)MEMORY_MIB << 20)
		return OUT_OF_MEMORY;
	*p = 0x1000 + allocated;
	allocated += n;
	return OK;
}

int cuMemsetD8Async(unsigned long long p, unsigned char v, size_t n, void *s)
{
	(void)v;
	return p < 0x1000 || n > allocated || s != &first ? INVALID : OK;
}

int cuModuleLoadData(void **m, const void *image) { return *m = &queue, strncmp(image, ".version ", 9) ? INVALID : OK; }
int cuModuleGetFunction(void **f, void *m, const char *name) { return *f = gpu, m != &queue || strcmp(name, "work") ? INVALID : OK; }
int cuMemHostRegister_v2(void *p, size_t n, unsigned flags) { return (uintptr_t)p % 4096 || n != 4096 || flags != 3 ? INVALID : (registered = 1, OK); }
int cuMemHostGetDevicePointer_v2(unsigned long long *out, void *p, unsigned flags) { return *out = (uintptr_t)p, flags || !registered ? INVALID : OK; }

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *s, void **args, void **extra)
{
	if (f != gpu || gx != 4 || gy != 1 || gz != 1 || bx != 256 || by != 1 || bz != 1 || shared || s != &first || extra)
		return INVALID;
	pthread_mutex_lock(&lock);
	while (count == QUEUE)
		pthread_cond_wait(&changed, &lock);
	unsigned at = (first + count++) % QUEUE;
	queue[at].iterations = *(uint32_t *)args[0];
	queue[at].page = (volatile uint32_t *)(uintptr_t)*(unsigned long long *)args[1];
	queue[at].number = *(uint32_t *)args[2];
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return OK;
}

int cuStreamSynchronize(void *s)
{
	if (s != &first)
		return INVALID;
	pthread_mutex_lock(&lock);
	while (count > 0)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return OK;
}
