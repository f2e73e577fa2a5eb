/* What the parts of the shim share: the message to the virtual node, and the shapes of functions. */
#ifndef GPUSIM_SHIM_H
#define GPUSIM_SHIM_H

#include "nvml.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* reply is an answer; it lives until the thread's next call. At least 16 numbers can be read, 0 where none were sent. */
struct reply {
	uint32_t n;
	const uint64_t *v;
	const char *text;
};

/* gpusim_ask sends one call and waits for its answer, for as long as the virtual hardware takes. */
nvmlReturn_t gpusim_ask(const char *fn, struct reply *r, const char *text, const uint64_t *args, size_t n);

/* gpusim_inits counts the initialisations of this process that were not shut down. */
extern atomic_int gpusim_inits;

#define EXPORT __attribute__((visibility("default")))
#define FN(name, ...) EXPORT nvmlReturn_t name(__VA_ARGS__)
/* Handles are structs around a pointer in this header and plain pointers in the vendor's: the ABI is the same. */
#define H(x) ((uint64_t)(uintptr_t)(x).handle)
#define SET(x, v) ((x).handle = (void *)(uintptr_t)(v))
#define ASK(r, text, ...) \
	gpusim_ask(__func__, (r), (text), (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))
#define NEED(...) \
	do { \
		const void *need[] = {__VA_ARGS__}; \
		for (size_t i = 0; i < sizeof need / sizeof *need; i++) \
			if (!need[i]) \
				return NVML_ERROR_INVALID_ARGUMENT; \
	} while (0)
#define OR_RETURN(call) \
	do { \
		nvmlReturn_t or_return = (call); \
		if (or_return != NVML_SUCCESS) \
			return or_return; \
	} while (0)


/* The library answers this itself, like the real one, whatever the driver says. */
#define READY \
	do { \
		if (atomic_load(&gpusim_inits) <= 0) \
			return NVML_ERROR_UNINITIALIZED; \
	} while (0)

#endif
