/*
 * alloc: a small CUDA program for the hardware test. It allocates GPU memory and, with --load, keeps the GPU busy by
 * setting it. It needs no CUDA toolkit: it opens the driver library at run time. It does not use managed memory.
 *
 * Exit codes: 0 ended by --seconds, 1 refused by CUDA, 2 usage, 3 no CUDA driver library.
 */
#include "driver.h"

static CUresult (*cu_init)(unsigned);
static CUresult (*cu_device_get)(CUdevice *, int);
static CUresult (*cu_device_name)(char *, int, CUdevice);
static CUresult (*cu_primary_retain)(CUcontext *, CUdevice);
static CUresult (*cu_ctx_set)(CUcontext);
static CUresult (*cu_mem_alloc)(CUdeviceptr *, size_t);
static CUresult (*cu_memset_async)(CUdeviceptr, unsigned char, size_t, CUstream);
static CUresult (*cu_stream_create)(CUstream *, unsigned);
static CUresult (*cu_stream_sync)(CUstream);

int main(int argc, char **argv)
{
	const size_t MiB = 1 << 20;
	enum { STEP = 64 }; /* MiB of one allocation while growing */
	long memory = 0, grow = 0, most = 0, load = 0, seconds = 0;
	const struct option all[] = {
		{"--memory", &memory}, /* MiB at the start */
		{"--grow", &grow},     /* MiB a second after that; 0 with --max: as fast as possible */
		{"--max", &most},      /* MiB at which growing ends */
		{"--load", &load},     /* MiB that are set in a loop */
		{"--seconds", &seconds},
	};
	if (!options(argc, argv, all, sizeof all / sizeof all[0])) {
		fprintf(stderr, "usage: alloc --memory MIB [--grow MIB] [--max MIB] [--load MIB] [--seconds N]\n");
		return 2;
	}
	if (memory == 0 || load > memory) {
		fprintf(stderr, "alloc: --memory must be at least 1 and no less than --load\n");
		return 2;
	}

	const struct symbol symbols[] = {
		{&cu_init, "cuInit"}, {&cu_device_get, "cuDeviceGet"}, {&cu_device_name, "cuDeviceGetName"},
		{&cu_primary_retain, "cuDevicePrimaryCtxRetain"}, {&cu_ctx_set, "cuCtxSetCurrent"},
		{&cu_mem_alloc, "cuMemAlloc_v2"}, {&cu_memset_async, "cuMemsetD8Async"},
		{&cu_stream_create, "cuStreamCreate"}, {&cu_stream_sync, "cuStreamSynchronize"},
		{&cu_error_name, "cuGetErrorName"},
	};
	load_driver(symbols, sizeof symbols / sizeof symbols[0]);
	CUdevice device;
	CUcontext context;
	CUstream stream;
	CUdeviceptr first, more;
	char name[128] = "";
	check(cu_init(0), "initialise");
	check(cu_device_get(&device, 0), "get the first device");
	check(cu_device_name(name, sizeof name, device), "read the device's name");
	check(cu_primary_retain(&context, device), "create a context");
	check(cu_ctx_set(context), "use the context");
	check(cu_stream_create(&stream, 0), "create a stream");
	check(cu_mem_alloc(&first, (size_t)memory * MiB), "allocate");
	check(cu_memset_async(first, 0, (size_t)memory * MiB, stream), "set memory");
	check(cu_stream_sync(stream), "wait for the GPU");
	printf("ready on %s, %ld MiB\n", name, memory);
	fflush(stdout);

	unsigned long long done = 0;
	long allocated = memory;
	double began = now(), reported = began, grown = began;
	for (;;) {
		double t = now();
		if (seconds && t - began >= (double)seconds)
			return 0;
		if (allocated + STEP <= most && (!grow || t - grown >= (double)STEP / (double)grow)) {
			check(cu_mem_alloc(&more, STEP * MiB), "allocate more");
			allocated += STEP;
			grown = t;
			if (allocated + STEP > most) {
				printf("grew to %ld MiB in %.6f s\n", allocated, now() - began);
				fflush(stdout);
			}
			if (!grow)
				continue;
		}
		if (load) {
			/* A short queue: queued work still runs when this process is frozen. */
			for (int i = 0; i < 4; i++)
				check(cu_memset_async(first, (unsigned char)done, (size_t)load * MiB, stream), "set memory");
			check(cu_stream_sync(stream), "wait for the GPU");
			done += 4;
		} else {
			nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
		}
		if (t - reported >= 0.25) {
			printf("done %llu allocated %ld\n", done, allocated);
			fflush(stdout);
			reported = t;
		}
	}
}
