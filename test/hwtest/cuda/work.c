/*
 * work: a CUDA program for the hardware test that keeps a queue of equal kernels. The GPU itself counts the finished ones in a
 * page of a file that other processes map. So the work of a frozen process, which cannot report anything, is seen.
 *
 * The page has: number of finished kernels (u32), number of launched ones (u32). "iterations" is the work of one kernel, so that
 * several processes run equal kernels.
 *
 * Exit codes: 0 ended by --seconds, 1 refused by CUDA, 2 usage, 3 no CUDA driver library.
 */
#include "driver.h"
#include <fcntl.h>
#include <sys/mman.h>

static CUresult (*cu_init)(unsigned);
static CUresult (*cu_device_get)(CUdevice *, int);
static CUresult (*cu_attribute)(int *, int, CUdevice);
static CUresult (*cu_primary_retain)(CUcontext *, CUdevice);
static CUresult (*cu_ctx_set)(CUcontext);
static CUresult (*cu_mem_alloc)(CUdeviceptr *, size_t);
static CUresult (*cu_stream_create)(CUstream *, unsigned);
static CUresult (*cu_stream_sync)(CUstream);
static CUresult (*cu_module_load)(CUmodule *, const void *);
static CUresult (*cu_function)(CUfunction *, CUmodule, const char *);
static CUresult (*cu_launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
static CUresult (*cu_host_register)(void *, size_t, unsigned);
static CUresult (*cu_host_pointer)(CUdeviceptr *, void *, unsigned);

enum { MULTIPROCESSORS = 16 };                     /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
enum { REGISTER_PORTABLE = 1, REGISTER_MAPPED = 2 }; /* CU_MEMHOSTREGISTER_PORTABLE, _DEVICEMAP */
enum { NON_BLOCKING = 1 };                         /* CU_STREAM_NON_BLOCKING */

/* A loop of dependent operations; then the first thread stores the kernel's number in the page. The work of a kernel is a number
 * of operations, not a time: a time would pass while another process has the GPU. */
static const char ptx[] =
	".version 6.4\n.target sm_70\n.address_size 64\n"
	".visible .entry work(.param .u32 n, .param .u64 page, .param .u32 number)\n{\n"
	".reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .b64 %d<4>;\n"
	"ld.param.u32 %r1, [n];\nld.param.u64 %d1, [page];\nld.param.u32 %r2, [number];\n"
	"cvta.to.global.u64 %d2, %d1;\n"
	"mov.u32 %r3, %tid.x;\nmov.u32 %r4, %ctaid.x;\nmov.u32 %r5, 0;\nmov.u32 %r6, %r3;\n"
	"again:\nmad.lo.u32 %r6, %r6, 1664525, 1013904223;\nadd.u32 %r5, %r5, 1;\nsetp.lt.u32 %p1, %r5, %r1;\n@%p1 bra again;\n"
	/* Without a use of the result the loop would be removed. The value is never the number of a kernel in practice. */
	"setp.eq.u32 %p2, %r6, 3735928559;\n@%p2 st.volatile.global.u32 [%d2+8], %r6;\n"
	"or.b32 %r7, %r3, %r4;\nsetp.ne.u32 %p3, %r7, 0;\n@%p3 bra done;\n"
	"st.volatile.global.u32 [%d2], %r2;\nmembar.sys;\n"
	"done:\nret;\n}\n";

static CUfunction kernel;
static CUstream stream;
static CUdeviceptr page;
static unsigned blocks;

static void launch(uint32_t iterations, uint32_t number)
{
	void *args[] = {&iterations, &page, &number};
	check(cu_launch(kernel, blocks, 1, 1, 256, 1, 1, 0, stream, args, NULL), "launch a kernel");
}

/* measure returns the number of iterations of a kernel of a duration on an idle GPU. */
static uint32_t measure(double seconds)
{
	uint32_t n = 1 << 16;
	for (;;) {
		double began = now();
		launch(n, 0);
		check(cu_stream_sync(stream), "wait for the GPU");
		double elapsed = now() - began;
		if (elapsed > 0.02 || n >= 1u << 30)
			return (uint32_t)((double)n * seconds / elapsed);
		n *= 2;
	}
}

int main(int argc, char **argv)
{
	long memory = 1, queue = 10, kernel_us = 5000, iterations = 0, think_us = 0, seconds = 0;
	const struct option all[] = {
		{"--memory", &memory},         /* MiB */
		{"--queue", &queue},           /* unfinished kernels; 1 is a synchronous program */
		{"--kernel", &kernel_us},      /* µs of one kernel on an idle GPU */
		{"--iterations", &iterations}, /* instead of --kernel: what another process measured */
		{"--think", &think_us},        /* µs of work on the host when the queue is empty */
		{"--seconds", &seconds},
	};
	if (argc < 3 || strcmp(argv[1], "--progress") || !options(argc - 2, argv + 2, all, sizeof all / sizeof all[0]) || queue < 1 || memory < 1) {
		fprintf(stderr, "usage: work --progress FILE [--memory MIB] [--queue N] [--kernel US | --iterations N] [--think US] [--seconds N]\n");
		return 2;
	}
	const char *file = argv[2];
	const struct symbol symbols[] = {
		{&cu_init, "cuInit"}, {&cu_device_get, "cuDeviceGet"}, {&cu_attribute, "cuDeviceGetAttribute"},
		{&cu_primary_retain, "cuDevicePrimaryCtxRetain"}, {&cu_ctx_set, "cuCtxSetCurrent"}, {&cu_mem_alloc, "cuMemAlloc_v2"},
		{&cu_stream_create, "cuStreamCreate"}, {&cu_stream_sync, "cuStreamSynchronize"}, {&cu_module_load, "cuModuleLoadData"},
		{&cu_function, "cuModuleGetFunction"}, {&cu_launch, "cuLaunchKernel"}, {&cu_host_register, "cuMemHostRegister_v2"},
		{&cu_host_pointer, "cuMemHostGetDevicePointer_v2"}, {&cu_error_name, "cuGetErrorName"},
	};
	load_driver(symbols, sizeof symbols / sizeof symbols[0]);

	int fd = open(file, O_RDWR | O_CREAT, 0600);
	volatile uint32_t *progress = MAP_FAILED;
	if (fd >= 0 && ftruncate(fd, 4096) == 0)
		progress = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (progress == MAP_FAILED) {
		perror(file);
		return 1;
	}
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUdeviceptr block;
	int processors;
	check(cu_init(0), "initialise");
	check(cu_device_get(&device, 0), "get the first device");
	check(cu_attribute(&processors, MULTIPROCESSORS, device), "count the multiprocessors");
	check(cu_primary_retain(&context, device), "create a context");
	check(cu_ctx_set(context), "use the context");
	check(cu_stream_create(&stream, NON_BLOCKING), "create a stream");
	check(cu_module_load(&module, ptx), "load the kernel");
	check(cu_function(&kernel, module, "work"), "find the kernel");
	check(cu_host_register((void *)progress, 4096, REGISTER_PORTABLE | REGISTER_MAPPED), "map the progress page");
	check(cu_host_pointer(&page, (void *)progress, 0), "find the progress page");
	check(cu_mem_alloc(&block, (size_t)memory << 20), "allocate");
	blocks = (unsigned)processors;
	if (!iterations)
		iterations = measure((double)kernel_us / 1e6);
	progress[0] = progress[1] = 0;
	printf("iterations %ld\nready\n", iterations);
	fflush(stdout);

	double began = now();
	for (uint32_t number = 0;;) {
		if (seconds && now() - began >= (double)seconds) {
			check(cu_stream_sync(stream), "wait for the GPU");
			return 0;
		}
		if (number - progress[0] < (uint32_t)queue) {
			launch((uint32_t)iterations, ++number);
			progress[1] = number;
			continue;
		}
		if (think_us && queue == 1) {
			check(cu_stream_sync(stream), "wait for the GPU");
			usleep((useconds_t)think_us);
		} else {
			nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
		}
	}
}
