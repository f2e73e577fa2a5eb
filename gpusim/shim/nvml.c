/*
 * libnvidia-ml.so.1 of a virtual node. Every function is one message to the process that serves the virtual GPUs. The
 * numbers of the answer are written to the caller's structs, whose layouts are those of nvml.h. There are no rules here.
 *
 * The linker's version scripts list the exported functions, one script for each driver branch.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <stdio.h>
#include <string.h>

atomic_int gpusim_inits;

/* text copies a string as the library does: a buffer that is too small is an error. */
static nvmlReturn_t text(const struct reply *r, char *out, size_t size)
{
	if (strlen(r->text) + 1 > size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, r->text, strlen(r->text) + 1);
	return NVML_SUCCESS;
}

/* --- start and end ---------------------------------------------------------------------------------------------- */

static nvmlReturn_t start(uint flags)
{
	struct reply r;
	OR_RETURN(ASK("nvmlInit_v2", &r, flags));
	atomic_fetch_add(&gpusim_inits, 1);
	return NVML_SUCCESS;
}

FN(nvmlInit, void) { return start(0); }
FN(nvmlInit_v2, void) { return start(0); }
FN(nvmlInitWithFlags, uint flags) { return start(flags); }

FN(nvmlShutdown, void)
{
	struct reply r;
	READY;
	nvmlReturn_t ret = ASK(__func__, &r, 0);
	atomic_fetch_sub(&gpusim_inits, 1);
	return ret;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result)
{
	static const struct { nvmlReturn_t code; const char *text; } texts[] = {
		{NVML_SUCCESS, "Success"}, {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
		{NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"}, {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
		{NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"}, {NVML_ERROR_NOT_FOUND, "Not Found"},
		{NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"}, {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
		{NVML_ERROR_TIMEOUT, "Timeout"}, {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
		{NVML_ERROR_GPU_IS_LOST, "GPU is lost"}, {NVML_ERROR_RESET_REQUIRED, "GPU requires reset"},
		{NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
		{NVML_ERROR_IN_USE, "In use by another client"}, {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
		{NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"}, {NVML_ERROR_GPU_NOT_FOUND, "GPU not found"},
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		if (texts[i].code == result)
			return texts[i].text;
	return "Unknown Error";
}

/* --- the node, its GPUs and their numbers ------------------------------------------------------------------------ */

#define NODE_TEXT(name) CALL(name, (char *out, uint size), (out), (0), return text(&r, out, size))
#define NODE_ONE(name, type) CALL(name, (type *out), (out), (0), *out = (type)v[0])
#define TEXT(name) CALL(name, (nvmlDevice_t d, char *out, uint size), (out), (H(d)), return text(&r, out, size))

NODE_TEXT(nvmlSystemGetDriverVersion)
NODE_TEXT(nvmlSystemGetNVMLVersion)
NODE_ONE(nvmlSystemGetCudaDriverVersion, int)
NODE_ONE(nvmlSystemGetCudaDriverVersion_v2, int)
NODE_ONE(nvmlDeviceGetCount, uint)
NODE_ONE(nvmlDeviceGetCount_v2, uint)
TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetUUID)
ONE(nvmlDeviceGetIndex, nvmlDevice_t, uint)
ONE(nvmlDeviceGetMinorNumber, nvmlDevice_t, uint)
ONE(nvmlDeviceGetComputeMode, nvmlDevice_t, nvmlComputeMode_t)
ONE(nvmlDeviceGetPersistenceMode, nvmlDevice_t, nvmlEnableState_t)
ONE(nvmlDeviceGetDisplayMode, nvmlDevice_t, nvmlEnableState_t)
ONE(nvmlDeviceGetDisplayActive, nvmlDevice_t, nvmlEnableState_t)
ONE(nvmlDeviceGetPowerUsage, nvmlDevice_t, uint)
ONE(nvmlDeviceGetEnforcedPowerLimit, nvmlDevice_t, uint)
ONE(nvmlDeviceGetPowerManagementLimit, nvmlDevice_t, uint)
ONE(nvmlDeviceGetPerformanceState, nvmlDevice_t, nvmlPstates_t)
ONE(nvmlDeviceGetArchitecture, nvmlDevice_t, nvmlDeviceArchitecture_t)
ONE_OF(nvmlDeviceGetTemperature, nvmlDevice_t, nvmlTemperatureSensors_t, uint)
ONE_OF(nvmlDeviceGetClockInfo, nvmlDevice_t, nvmlClockType_t, uint)
ONE_OF(nvmlDeviceGetMaxClockInfo, nvmlDevice_t, nvmlClockType_t, uint)

/* Sensors and error counters. */
ONE(nvmlDeviceGetPowerManagementDefaultLimit, nvmlDevice_t, uint)
ONE(nvmlDeviceGetCurrentClocksEventReasons, nvmlDevice_t, unsigned long long)
ONE(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDevice_t, unsigned long long)
ONE(nvmlDeviceGetPcieReplayCounter, nvmlDevice_t, uint)
ONE(nvmlDeviceGetFanSpeed, nvmlDevice_t, uint)
ONE_OF(nvmlDeviceGetTemperatureThreshold, nvmlDevice_t, nvmlTemperatureThresholds_t, uint)
CALL(nvmlDeviceGetPowerManagementLimitConstraints, (nvmlDevice_t d, uint *min, uint *max), (min, max), (H(d)),
     *min = (uint)v[0]; *max = (uint)v[1])
CALL(nvmlDeviceSetPowerManagementLimit, (nvmlDevice_t d, uint limit), (""), (H(d), limit), )
CALL(nvmlDeviceGetTotalEccErrors, (nvmlDevice_t d, nvmlMemoryErrorType_t which, nvmlEccCounterType_t since, unsigned long long *out),
     (out), (H(d), (uint64_t)which, (uint64_t)since), *out = v[0])
CALL(nvmlDeviceGetNvLinkErrorCounter, (nvmlDevice_t d, uint link, nvmlNvLinkErrorCounter_t which, unsigned long long *out),
     (out), (H(d), link, (uint64_t)which), *out = v[0])
CALL(nvmlDeviceGetRemappedRows, (nvmlDevice_t d, uint *corrected, uint *uncorrected, uint *pending, uint *failed),
     (corrected, uncorrected, pending, failed), (H(d)),
     *corrected = (uint)v[0]; *uncorrected = (uint)v[1]; *pending = (uint)v[2]; *failed = (uint)v[3])
CALL(nvmlDeviceGetRowRemapperHistogram, (nvmlDevice_t d, nvmlRowRemapperHistogramValues_t *out), (out), (H(d)),
     *out = (nvmlRowRemapperHistogramValues_t){(uint)v[0], (uint)v[1], (uint)v[2], (uint)v[3], (uint)v[4]})

/* Functions that monitors call at start and for which a virtual board has no figures. */
#define UNSUPPORTED(name, ...) FN(name, __VA_ARGS__) { READY; return NVML_ERROR_NOT_SUPPORTED; }
UNSUPPORTED(nvmlDeviceGetBAR1MemoryInfo, nvmlDevice_t d, nvmlBAR1Memory_t *o)
UNSUPPORTED(nvmlDeviceGetEncoderUtilization, nvmlDevice_t d, uint *o, uint *p)
UNSUPPORTED(nvmlDeviceGetDecoderUtilization, nvmlDevice_t d, uint *o, uint *p)
UNSUPPORTED(nvmlDeviceGetPcieThroughput, nvmlDevice_t d, nvmlPcieUtilCounter_t c, uint *o)
UNSUPPORTED(nvmlDeviceGetMaxPcieLinkGeneration, nvmlDevice_t d, uint *o)
UNSUPPORTED(nvmlDeviceGetMaxPcieLinkWidth, nvmlDevice_t d, uint *o)
UNSUPPORTED(nvmlDeviceGetCurrPcieLinkGeneration, nvmlDevice_t d, uint *o)
UNSUPPORTED(nvmlDeviceGetCurrPcieLinkWidth, nvmlDevice_t d, uint *o)
UNSUPPORTED(nvmlDeviceGetTotalEnergyConsumption, nvmlDevice_t d, unsigned long long *o)
UNSUPPORTED(nvmlDeviceGetEccMode, nvmlDevice_t d, nvmlEnableState_t *o, nvmlEnableState_t *p)
UNSUPPORTED(nvmlDeviceGetAccountingMode, nvmlDevice_t d, nvmlEnableState_t *o)
UNSUPPORTED(nvmlDeviceGetSerial, nvmlDevice_t d, char *o, uint n)
UNSUPPORTED(nvmlDeviceGetVbiosVersion, nvmlDevice_t d, char *o, uint n)

static nvmlReturn_t open_device(const char *fn, uint64_t index, const char *name, nvmlDevice_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	OR_RETURN(gpusim_ask(fn, &r, name, &index, 1));
	SET(*out, r.v[0]);
	return NVML_SUCCESS;
}

#define BY_INDEX(name) FN(name, uint index, nvmlDevice_t *out) { return open_device(#name, index, NULL, out); }
#define BY_TEXT(name) FN(name, const char *id, nvmlDevice_t *out) { NEED(id); return open_device(#name, 0, id, out); }
BY_INDEX(nvmlDeviceGetHandleByIndex)
BY_INDEX(nvmlDeviceGetHandleByIndex_v2)
BY_TEXT(nvmlDeviceGetHandleByUUID)
BY_TEXT(nvmlDeviceGetHandleByPciBusId)
BY_TEXT(nvmlDeviceGetHandleByPciBusId_v2)

static void pci(nvmlPciInfo_t *out, const struct reply *r)
{
	const uint64_t *v = r->v;
	*out = (nvmlPciInfo_t){.domain = (uint)v[0], .bus = (uint)v[1], .device = (uint)v[2], .pciDeviceId = (uint)v[3], .pciSubSystemId = (uint)v[4]};
	snprintf(out->busId, sizeof out->busId, "%s", r->text);
	/* The older field has a domain of four digits. */
	snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%s", strlen(r->text) > 4 ? r->text + 4 : "");
}

#define PCI(name) CALL(name, (nvmlDevice_t d, nvmlPciInfo_t *out), (out), (H(d)), pci(out, &r))
PCI(nvmlDeviceGetPciInfo)
PCI(nvmlDeviceGetPciInfo_v2)
PCI(nvmlDeviceGetPciInfo_v3)

ONE_OF(nvmlDeviceGetNvLinkState, nvmlDevice_t, uint, nvmlEnableState_t)
ONE_OF(nvmlDeviceGetNvLinkRemoteDeviceType, nvmlDevice_t, uint, nvmlIntNvLinkDeviceType_t)
CALL(nvmlDeviceGetNvLinkRemotePciInfo_v2, (nvmlDevice_t d, uint link, nvmlPciInfo_t *out), (out), (H(d), link), pci(out, &r))

CALL(nvmlDeviceGetCudaComputeCapability, (nvmlDevice_t d, int *major, int *minor), (major, minor), (H(d)),
     *major = (int)v[0]; *minor = (int)v[1])

/* The first version counts reserved memory as used. */
CALL(nvmlDeviceGetMemoryInfo, (nvmlDevice_t d, nvmlMemory_t *out), (out), (H(d)),
     *out = (nvmlMemory_t){.total = v[0], .free = v[2], .used = v[1] + v[3]})

FN(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t d, nvmlMemory_v2_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	if (out->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	OR_RETURN(ASK(__func__, &r, H(d)));
	*out = (nvmlMemory_v2_t){out->version, r.v[0], r.v[1], r.v[2], r.v[3]};
	return NVML_SUCCESS;
}

FN(nvmlDeviceSetMemoryLimits_v1, nvmlDevice_t d, nvmlSetMemoryLimits_v1_t *in)
{
	struct reply r;
	READY;
	NEED(in);
	NEED(in->nameSpace);
	return gpusim_ask(__func__, &r, in->nameSpace, (const uint64_t[]){H(d), in->softLimit, in->hardLimit}, 3);
}

FN(nvmlDeviceGetMemoryLimits_v1, nvmlDevice_t d, nvmlGetMemoryLimits_v1_t *out)
{
	struct reply r;
	uint64_t device = H(d);
	READY;
	NEED(out);
	NEED(out->nameSpace);
	OR_RETURN(gpusim_ask(__func__, &r, out->nameSpace, &device, 1));
	out->softLimit = r.v[0];
	out->hardLimit = r.v[1];
	out->currentUsed = r.v[2];
	return NVML_SUCCESS;
}

CALL(nvmlDeviceGetUtilizationRates, (nvmlDevice_t d, nvmlUtilization_t *out), (out), (H(d)),
     *out = (nvmlUtilization_t){.gpu = (uint)v[0], .memory = (uint)v[1]})
CALL(nvmlDeviceSetComputeMode, (nvmlDevice_t d, nvmlComputeMode_t mode), (""), (H(d), (uint64_t)mode), )
CALL(nvmlDeviceSetPersistenceMode, (nvmlDevice_t d, nvmlEnableState_t mode), (""), (H(d), (uint64_t)mode), )

FN(nvmlDeviceGetFieldValues, nvmlDevice_t d, int count, nvmlFieldValue_t *values)
{
	struct reply r;
	uint64_t args[64] = {H(d)};
	READY;
	NEED(values);
	if (count <= 0 || count > 63)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < count; i++)
		args[i + 1] = values[i].fieldId;
	OR_RETURN(gpusim_ask(__func__, &r, NULL, args, (size_t)count + 1));
	for (int i = 0; i < count; i++) {
		const uint64_t *v = r.v + 3 * i;
		values[i].timestamp = values[i].latencyUsec = 0;
		values[i].nvmlReturn = (nvmlReturn_t)v[0];
		values[i].valueType = (nvmlValueType_t)v[1];
		values[i].value.ullVal = v[2];
	}
	return NVML_SUCCESS;
}

/* --- processes -------------------------------------------------------------------------------------------------- */

/* processes fills version 2 of the struct, which version 3 of the functions uses too. */
static nvmlReturn_t processes(const char *fn, nvmlDevice_t d, uint *count, nvmlProcessInfo_v2_t *out)
{
	struct reply r;
	READY;
	NEED(count);
	OR_RETURN(ASK(fn, &r, H(d)));
	uint n = r.n / 4, capacity = *count;
	*count = n;
	if (n > capacity || (n > 0 && !out))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (uint i = 0; i < n; i++) {
		const uint64_t *v = r.v + 4 * i;
		out[i] = (nvmlProcessInfo_v2_t){(uint)v[0], v[1], (uint)v[2], (uint)v[3]};
	}
	return NVML_SUCCESS;
}

/* Version 1 of the functions has no instances. */
static nvmlReturn_t processes_v1(const char *fn, nvmlDevice_t d, uint *count, nvmlProcessInfo_v1_t *out)
{
	nvmlProcessInfo_v2_t list[256];
	uint n = 256, capacity = count ? *count : 0;
	NEED(count);
	OR_RETURN(processes(fn, d, &n, list));
	*count = n;
	if (n > capacity || (n > 0 && !out))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (uint i = 0; i < n; i++)
		out[i] = (nvmlProcessInfo_v1_t){list[i].pid, list[i].usedGpuMemory};
	return NVML_SUCCESS;
}

#define PROCESSES(name) \
	FN(name, nvmlDevice_t d, uint *count, nvmlProcessInfo_v1_t *out) { return processes_v1(#name, d, count, out); } \
	FN(name##_v2, nvmlDevice_t d, uint *count, nvmlProcessInfo_v2_t *out) { return processes(#name, d, count, out); } \
	FN(name##_v3, nvmlDevice_t d, uint *count, nvmlProcessInfo_t *out) { return processes(#name, d, count, out); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)

FN(nvmlSystemGetProcessName, uint pid, char *name, uint length)
{
	char path[64];
	READY;
	NEED(name);
	if (length == 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	FILE *f = fopen(path, "re");
	if (!f)
		return NVML_ERROR_NOT_FOUND;
	name[fread(name, 1, length - 1, f)] = 0;
	fclose(f);
	return NVML_SUCCESS;
}

/* enough reports whether n samples fit; else it sets the needed capacity, at least 100 as in the real library. */
static int enough(uint n, uint *capacity, const void *array)
{
	int fits = array && n <= *capacity;
	*capacity = fits ? n : n > 100 ? n : 100;
	return fits;
}

CALL(nvmlDeviceGetProcessUtilization, (nvmlDevice_t d, nvmlProcessUtilizationSample_t *out, uint *count, unsigned long long since), (count), (H(d), since),
     if (!enough(r.n / 4, count, out))
	     return NVML_ERROR_INSUFFICIENT_SIZE;
     for (uint i = 0; i < *count; i++, v += 4)
	     out[i] = (nvmlProcessUtilizationSample_t){.pid = (uint)v[0], .timeStamp = v[1], .smUtil = (uint)v[2], .memUtil = (uint)v[3]})

FN(nvmlDeviceGetProcessesUtilizationInfo, nvmlDevice_t d, nvmlProcessesUtilizationInfo_t *info)
{
	struct reply r;
	READY;
	NEED(info);
	if (info->version != nvmlProcessesUtilizationInfo_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	OR_RETURN(ASK(__func__, &r, H(d), info->lastSeenTimeStamp));
	if (!enough(r.n / 4, &info->processSamplesCount, info->procUtilArray))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	const uint64_t *v = r.v;
	for (uint i = 0; i < info->processSamplesCount; i++, v += 4)
		info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){.timeStamp = v[1], .pid = (uint)v[0], .smUtil = (uint)v[2], .memUtil = (uint)v[3]};
	return NVML_SUCCESS;
}

/* With samples NULL the answer is the size of the driver's buffer, which clients saw as 100. What a smaller buffer gets is not
 * documented: here the oldest samples. */
FN(nvmlDeviceGetSamples, nvmlDevice_t d, nvmlSamplingType_t type, unsigned long long since, nvmlValueType_t *kind, uint *count, nvmlSample_t *out)
{
	struct reply r;
	READY;
	NEED(kind, count);
	if (out && *count == 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	OR_RETURN(ASK(__func__, &r, H(d), (uint64_t)type, since));
	uint n = r.n / 2;
	*kind = NVML_VALUE_TYPE_UNSIGNED_INT;
	if (!out)
		*count = n > 100 ? n : 100;
	else if (*count > n)
		*count = n;
	for (uint i = 0; out && i < *count; i++)
		out[i] = (nvmlSample_t){.timeStamp = r.v[2 * i], .sampleValue.uiVal = (uint)r.v[2 * i + 1]};
	return NVML_SUCCESS;
}
