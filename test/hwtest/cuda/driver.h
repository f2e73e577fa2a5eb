/*
 * The CUDA driver library, opened at run time: the programs of the hardware test need no CUDA toolkit.
 * A program lists the functions that it uses in a table and calls load_driver.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The necessary declarations of the driver's ABI. */
typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef unsigned long long CUdeviceptr;

struct symbol {
	void *at;
	const char *name;
};

static CUresult (*cu_error_name)(CUresult, const char **);

static void check(CUresult r, const char *what)
{
	const char *name = NULL;
	if (r == 0)
		return;
	if (cu_error_name)
		cu_error_name(r, &name);
	fprintf(stderr, "cannot %s: CUDA error %d (%s)\n", what, r, name ? name : "unknown");
	exit(1);
}

static void load_driver(const struct symbol *all, size_t n)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		exit(3);
	}
	for (size_t i = 0; i < n; i++) {
		void *f = dlsym(lib, all[i].name);
		if (!f) {
			fprintf(stderr, "libcuda.so.1 has no %s\n", all[i].name);
			exit(3);
		}
		memcpy(all[i].at, &f, sizeof f);
	}
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* options parses pairs of a name and a number; 0 if they are wrong. */
struct option {
	const char *name;
	long *value;
};

static int options(int argc, char **argv, const struct option *all, size_t n)
{
	for (int i = 1; i < argc; i += 2) {
		size_t k = 0;
		char *end;
		while (k < n && strcmp(argv[i], all[k].name))
			k++;
		if (k == n || i + 1 == argc)
			return 0;
		*all[k].value = strtol(argv[i + 1], &end, 10);
		if (*end || *all[k].value < 0)
			return 0;
	}
	return 1;
}
