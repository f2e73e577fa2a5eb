/* Declarations of the shim: the message to the virtual node, and macros for functions. */
#ifndef GPUSIM_SHIM_H
#define GPUSIM_SHIM_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "nvml.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned int uint;

/* reply is an answer; it is valid until the thread's next call. It has at least 16 numbers, 0 where none were sent. */
struct reply {
	uint32_t n;
	const uint64_t *v;
	const char *text;
};

/* gpusim_ask sends one call and waits for its answer, as long as the virtual hardware takes. */
nvmlReturn_t gpusim_ask(const char *fn, struct reply *r, const char *text, const uint64_t *args, size_t n);

/* gpusim_inits counts the initialisations of this process without a shutdown. */
extern atomic_int gpusim_inits;

#define FN(name, ...) __attribute__((visibility("default"))) nvmlReturn_t name(__VA_ARGS__)

/* Handles are structs around a pointer in this header and plain pointers in the vendor's: the ABI is the same. */
#define H(x) ((uint64_t)(uintptr_t)(x).handle)
#define SET(x, value) ((x).handle = (void *)(uintptr_t)(value))

/* The library checks this itself, as the real one does. */
#define READY \
	do { \
		if (atomic_load(&gpusim_inits) <= 0) \
			return NVML_ERROR_UNINITIALIZED; \
	} while (0)
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

/* ASK sends numbers under a function's name. */
#define ASK(fn, r, ...) gpusim_ask(fn, r, NULL, (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t))

/* CALL is a whole function: its parameters, the pointers that must not be null, the numbers that are sent, and what is done
 * with the answer r, whose numbers are v. */
#define CALL(name, params, pointers, numbers, ...) \
	FN(name, UNWRAP params) \
	{ \
		struct reply r; \
		READY; \
		NEED pointers; \
		OR_RETURN(ASK(#name, &r, UNWRAP numbers)); \
		const uint64_t *v = r.v; \
		(void)v; \
		__VA_ARGS__; \
		return NVML_SUCCESS; \
	}
#define UNWRAP(...) __VA_ARGS__

/* ONE is a function that answers one number about something; ONE_OF has a selector before it. */
#define ONE(name, handle, type) CALL(name, (handle h, type *out), (out), (H(h)), *out = (type)v[0])
#define ONE_OF(name, handle, selector, type) \
	CALL(name, (handle h, selector which, type *out), (out), (H(h), (uint64_t)which), *out = (type)v[0])

#endif
