/*
 * The three functions that read utilisation samples, with the types of the vendor's header, for the test of the calls by
 * pointer. The number of rows is the last seen time modulo 1000; thousands select what a driver does.
 */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "nvml.h"

#include <stddef.h>

enum { NORMAL, DRY, REFUSED, NO_SIZE, GROWING, OTHER_TYPE };

static unsigned int calls;

/* test_calls has as many rows as the others were called. It is called as a process list, because tests have no cgo. */
int test_calls(void *device, unsigned int *count, void *rows)
{
	(void)device;
	(void)rows;
	*count = calls;
	calls = 0;
	return NVML_SUCCESS;
}

/* begin returns the code of a call and the number of rows that it has. */
static nvmlReturn_t begin(unsigned long long since, unsigned int *rows)
{
	*rows = (unsigned int)(since % 1000);
	calls++;
	switch (since / 1000) {
	case DRY: return NVML_ERROR_NOT_FOUND;
	case REFUSED: return NVML_ERROR_NOT_SUPPORTED;
	case GROWING: *rows += 50 * (calls - 1); /* processes start between two calls */
	}
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
	unsigned int n, capacity = info->processSamplesCount;
	(void)device;
	if (info->version != nvmlProcessesUtilizationInfo_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlReturn_t ret = begin(info->lastSeenTimeStamp, &n);
	if (ret != NVML_SUCCESS)
		return ret;
	info->processSamplesCount = info->lastSeenTimeStamp / 1000 == NO_SIZE ? 0 : n;
	if (capacity < n)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	info->processSamplesCount = n;
	for (unsigned int i = 0; i < n; i++)
		info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
			.timeStamp = 1ull << 40 | i, .pid = i + 1, .smUtil = i % 101, .memUtil = (i + 7) % 101,
			.encUtil = 201, .decUtil = 202, .jpgUtil = 203, .ofaUtil = 204};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned int *count,
                                             unsigned long long since)
{
	unsigned int n, capacity = *count;
	(void)device;
	nvmlReturn_t ret = begin(since, &n);
	if (ret != NVML_SUCCESS)
		return ret;
	*count = since / 1000 == NO_SIZE ? 0 : n;
	if (capacity < n)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	*count = n;
	for (unsigned int i = 0; i < n; i++)
		out[i] = (nvmlProcessUtilizationSample_t){
			.timeStamp = 1ull << 40 | i, .pid = i + 1, .smUtil = i % 101, .memUtil = (i + 7) % 101, .encUtil = 201, .decUtil = 202};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long since,
                                  nvmlValueType_t *kind, unsigned int *count, nvmlSample_t *out)
{
	unsigned int n, capacity = *count;
	(void)device;
	if (type != NVML_GPU_UTILIZATION_SAMPLES)
		return NVML_ERROR_INVALID_ARGUMENT;
	nvmlReturn_t ret = begin(since, &n);
	if (ret != NVML_SUCCESS)
		return ret;
	if (since / 1000 == NO_SIZE && capacity < n)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	*kind = since / 1000 == OTHER_TYPE ? NVML_VALUE_TYPE_DOUBLE : NVML_VALUE_TYPE_UNSIGNED_INT;
	*count = n < capacity ? n : capacity;
	for (unsigned int i = 0; i < *count; i++) {
		out[i] = (nvmlSample_t){.timeStamp = 1ull << 40 | i, .sampleValue.ullVal = ~0ull}; /* the rest of the union is garbage */
		if (*kind == NVML_VALUE_TYPE_DOUBLE)
			out[i].sampleValue.dVal = i % 101 + 0.75;
		else
			out[i].sampleValue.uiVal = i % 101;
	}
	return NVML_SUCCESS;
}
