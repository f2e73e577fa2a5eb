//go:build cgo

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { no_memory = 20 }; // NVML_ERROR_MEMORY

void *gpushare_open(const char *name, char *err, size_t len)
{
	void *lib = dlopen(name, RTLD_LAZY | RTLD_GLOBAL);
	if (lib == NULL) {
		const char *why = dlerror();
		snprintf(err, len, "%s", why != NULL ? why : "dlopen failed");
	}
	return lib;
}

void *gpushare_symbol(void *lib, const char *name)
{
	return dlsym(lib, name);
}

void gpushare_path(void *lib, char *out, size_t len)
{
	struct link_map *map = NULL;
	out[0] = '\0';
	if (dlinfo(lib, RTLD_DI_LINKMAP, &map) == 0 && map != NULL && map->l_name != NULL)
		snprintf(out, len, "%s", map->l_name);
}

int gpushare_processes(void *fn, void *device, uint32_t *count, void *rows)
{
	int (*list)(void *, unsigned int *, void *) = (int (*)(void *, unsigned int *, void *))fn;
	return list(device, count, rows);
}

// The argument of nvmlDeviceGetProcessesUtilizationInfo, version 1.
struct row {
	unsigned long long time;
	unsigned int pid, sm, mem, enc, dec, jpg, ofa;
};
struct info {
	unsigned int version, count;
	unsigned long long since;
	struct row *rows;
};

int gpushare_samples(void *fn, void *device, uint64_t since, uint32_t *count, gpushare_sample *out)
{
	int (*call)(void *, struct info *) = (int (*)(void *, struct info *))fn;
	uint32_t capacity = *count;
	struct info in = {
		.version = (unsigned int)sizeof(struct info) | 1u << 24,
		.count = capacity,
		.since = since,
		.rows = calloc(capacity, sizeof(struct row)),
	};
	if (in.rows == NULL)
		return no_memory;
	int ret = call(device, &in);
	for (uint32_t i = 0; ret == 0 && i < in.count && i < capacity; i++)
		out[i] = (gpushare_sample){in.rows[i].time, in.rows[i].pid, in.rows[i].sm, in.rows[i].mem, 0};
	*count = in.count;
	free(in.rows);
	return ret;
}

// One sample of nvmlDeviceGetProcessUtilization.
struct old_row {
	unsigned int pid;
	unsigned long long time;
	unsigned int sm, mem, enc, dec;
};

int gpushare_samples_old(void *fn, void *device, uint64_t since, uint32_t *count, gpushare_sample *out)
{
	int (*call)(void *, struct old_row *, unsigned int *, unsigned long long) =
		(int (*)(void *, struct old_row *, unsigned int *, unsigned long long))fn;
	uint32_t capacity = *count;
	struct old_row *rows = calloc(capacity, sizeof(*rows));
	if (rows == NULL)
		return no_memory;
	int ret = call(device, rows, count, since);
	for (uint32_t i = 0; ret == 0 && i < *count && i < capacity; i++)
		out[i] = (gpushare_sample){rows[i].time, rows[i].pid, rows[i].sm, rows[i].mem, 0};
	free(rows);
	return ret;
}

enum { utilization_samples = 1 }; // NVML_GPU_UTILIZATION_SAMPLES

int gpushare_series(void *fn, void *device, uint64_t since, uint32_t *count, int *type, gpushare_value *out)
{
	// nvmlSample_t is the time and a union of eight bytes, as gpushare_value is.
	int (*call)(void *, int, unsigned long long, int *, unsigned int *, gpushare_value *) =
		(int (*)(void *, int, unsigned long long, int *, unsigned int *, gpushare_value *))fn;
	return call(device, utilization_samples, since, type, count, out);
}
