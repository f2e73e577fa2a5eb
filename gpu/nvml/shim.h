// Calls that go-nvml does not offer in a usable form, made through pointers that were looked up at start.
#ifndef GPUSHARE_NVML_SHIM_H
#define GPUSHARE_NVML_SHIM_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
	uint64_t time;
	uint32_t pid, sm, mem, unused;
} gpushare_sample;

// Opens a library with global symbols, as go-nvml needs it. On failure it returns NULL and writes the reason to err.
void *gpushare_open(const char *name, char *err, size_t len);
// Looks a symbol up; NULL when the library lacks it.
void *gpushare_symbol(void *lib, const char *name);
// Writes the path that the library was loaded from.
void gpushare_path(void *lib, char *out, size_t len);
// Calls one of the process lists. rows has space for *count rows of the size that the library writes.
int gpushare_processes(void *fn, void *device, uint32_t *count, void *rows);
// Read the samples of all processes with the newer and the older function. *count is the capacity, and after the call the
// number of samples that were written or that need space.
int gpushare_samples(void *fn, void *device, uint64_t since, uint32_t *count, gpushare_sample *out);
int gpushare_samples_old(void *fn, void *device, uint64_t since, uint32_t *count, gpushare_sample *out);

// One sample of nvmlDeviceGetSamples. bits is the union of the value; the type of the value says how to read it.
typedef struct {
	uint64_t time, bits;
} gpushare_value;

// Reads the GPU's utilisation samples. *count is the capacity, and after the call the number of samples that were written.
int gpushare_series(void *fn, void *device, uint64_t since, uint32_t *count, int *type, gpushare_value *out);

#endif
