/*
 * libnvidia-ml.so.1 of a virtual node. Every function is one message to the process that owns the virtual GPUs; here the
 * answer's numbers are put into the caller's structs, whose layouts come from nvml.h alone. No rule lives here.
 *
 * Threads have a socket each, closed on exec; a forked child makes its own. Which functions the library has is said by the
 * linker's version script, one per driver generation.
 */
#define _GNU_SOURCE
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "nvml.h"

#include "shim.h"

#include <stdio.h>
#include <string.h>

atomic_int gpusim_inits;

/* text copies a string the way the library does: too small a buffer is an error, not a cut. */
static nvmlReturn_t text(const struct reply *r, char *out, size_t size)
{
	if (strlen(r->text) + 1 > size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, r->text, strlen(r->text) + 1);
	return NVML_SUCCESS;
}

/* --- start and end ---------------------------------------------------------------------------------------------- */

static nvmlReturn_t start(const char *fn)
{
	struct reply r;
	OR_RETURN(gpusim_ask(fn, &r, NULL, NULL, 0));
	atomic_fetch_add(&gpusim_inits, 1);
	return NVML_SUCCESS;
}

FN(nvmlInit, void) { return start("nvmlInit_v2"); }
FN(nvmlInit_v2, void) { return start("nvmlInit_v2"); }
FN(nvmlInitWithFlags, unsigned int flags) { (void)flags; return start("nvmlInit_v2"); }

FN(nvmlShutdown, void)
{
	struct reply r;
	READY;
	nvmlReturn_t ret = ASK(&r, NULL, 0);
	atomic_fetch_sub(&gpusim_inits, 1);
	return ret;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
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
		{NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		if (texts[i].code == result)
			return texts[i].text;
	return "Unknown Error";
}

/* --- the shapes that most functions have ------------------------------------------------------------------------ */

/* NODE_TEXT, TEXT: a string. */
#define NODE_TEXT(name) \
	FN(name, char *out, unsigned int size) \
	{ \
		struct reply r; \
		READY; \
		NEED(out); \
		OR_RETURN(ASK(&r, NULL, 0)); \
		return text(&r, out, size); \
	}
#define TEXT(name) \
	FN(name, nvmlDevice_t device, char *out, unsigned int size) \
	{ \
		struct reply r; \
		READY; \
		NEED(out); \
		OR_RETURN(ASK(&r, NULL, H(device))); \
		return text(&r, out, size); \
	}
/* ONE: one number of a type. */
#define ONE(name, type) \
	FN(name, nvmlDevice_t device, type *out) \
	{ \
		struct reply r; \
		READY; \
		NEED(out); \
		OR_RETURN(ASK(&r, NULL, H(device))); \
		*out = (type)r.v[0]; \
		return NVML_SUCCESS; \
	}
/* ONE_OF: one number that a selector chooses. */
#define ONE_OF(name, selector) \
	FN(name, nvmlDevice_t device, selector which, unsigned int *out) \
	{ \
		struct reply r; \
		READY; \
		NEED(out); \
		OR_RETURN(ASK(&r, NULL, H(device), (uint64_t)which)); \
		*out = (unsigned int)r.v[0]; \
		return NVML_SUCCESS; \
	}
/* NODE_ONE: one number of the node. */
#define NODE_ONE(name, type) \
	FN(name, type *out) \
	{ \
		struct reply r; \
		READY; \
		NEED(out); \
		OR_RETURN(ASK(&r, NULL, 0)); \
		*out = (type)r.v[0]; \
		return NVML_SUCCESS; \
	}

NODE_TEXT(nvmlSystemGetDriverVersion)
NODE_TEXT(nvmlSystemGetNVMLVersion)
NODE_ONE(nvmlSystemGetCudaDriverVersion, int)
NODE_ONE(nvmlSystemGetCudaDriverVersion_v2, int)
NODE_ONE(nvmlDeviceGetCount, unsigned int)
NODE_ONE(nvmlDeviceGetCount_v2, unsigned int)
TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetUUID)
ONE(nvmlDeviceGetIndex, unsigned int)
ONE(nvmlDeviceGetMinorNumber, unsigned int)
ONE(nvmlDeviceGetComputeMode, nvmlComputeMode_t)
ONE(nvmlDeviceGetPersistenceMode, nvmlEnableState_t)
ONE(nvmlDeviceGetDisplayMode, nvmlEnableState_t)
ONE(nvmlDeviceGetDisplayActive, nvmlEnableState_t)
ONE(nvmlDeviceGetPowerUsage, unsigned int)
ONE(nvmlDeviceGetEnforcedPowerLimit, unsigned int)
ONE(nvmlDeviceGetPowerManagementLimit, unsigned int)
ONE(nvmlDeviceGetPerformanceState, nvmlPstates_t)
ONE(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t)
ONE(nvmlDeviceGetMaxMigDeviceCount, unsigned int)
ONE(nvmlDeviceIsMigDeviceHandle, unsigned int)
ONE(nvmlDeviceGetGpuInstanceId, unsigned int)
ONE(nvmlDeviceGetComputeInstanceId, unsigned int)
ONE(nvmlDeviceGetSupportedEventTypes, unsigned long long)
ONE_OF(nvmlDeviceGetTemperature, nvmlTemperatureSensors_t)
ONE_OF(nvmlDeviceGetClockInfo, nvmlClockType_t)
ONE_OF(nvmlDeviceGetMaxClockInfo, nvmlClockType_t)

/* What monitors ask at start and a virtual board has no figure for. */
#define UNSUPPORTED(name, ...) \
	FN(name, __VA_ARGS__) { READY; return NVML_ERROR_NOT_SUPPORTED; }
UNSUPPORTED(nvmlDeviceGetFanSpeed, nvmlDevice_t d, unsigned int *o)
UNSUPPORTED(nvmlDeviceGetBAR1MemoryInfo, nvmlDevice_t d, nvmlBAR1Memory_t *o)
UNSUPPORTED(nvmlDeviceGetEncoderUtilization, nvmlDevice_t d, unsigned int *o, unsigned int *p)
UNSUPPORTED(nvmlDeviceGetDecoderUtilization, nvmlDevice_t d, unsigned int *o, unsigned int *p)
UNSUPPORTED(nvmlDeviceGetPcieThroughput, nvmlDevice_t d, nvmlPcieUtilCounter_t c, unsigned int *o)
UNSUPPORTED(nvmlDeviceGetTemperatureThreshold, nvmlDevice_t d, nvmlTemperatureThresholds_t t, unsigned int *o)
UNSUPPORTED(nvmlDeviceGetMaxPcieLinkGeneration, nvmlDevice_t d, unsigned int *o)
UNSUPPORTED(nvmlDeviceGetMaxPcieLinkWidth, nvmlDevice_t d, unsigned int *o)
UNSUPPORTED(nvmlDeviceGetCurrPcieLinkGeneration, nvmlDevice_t d, unsigned int *o)
UNSUPPORTED(nvmlDeviceGetCurrPcieLinkWidth, nvmlDevice_t d, unsigned int *o)
UNSUPPORTED(nvmlDeviceGetTotalEnergyConsumption, nvmlDevice_t d, unsigned long long *o)
UNSUPPORTED(nvmlDeviceGetEccMode, nvmlDevice_t d, nvmlEnableState_t *o, nvmlEnableState_t *p)
UNSUPPORTED(nvmlDeviceGetAccountingMode, nvmlDevice_t d, nvmlEnableState_t *o)
UNSUPPORTED(nvmlDeviceGetSerial, nvmlDevice_t d, char *o, unsigned int n)
UNSUPPORTED(nvmlDeviceGetVbiosVersion, nvmlDevice_t d, char *o, unsigned int n)

/* --- handles ---------------------------------------------------------------------------------------------------- */

static nvmlReturn_t open_device(const char *fn, uint64_t index, const char *name, nvmlDevice_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	OR_RETURN(gpusim_ask(fn, &r, name, &index, 1));
	SET(*out, r.v[0]);
	return NVML_SUCCESS;
}

FN(nvmlDeviceGetHandleByIndex, unsigned int i, nvmlDevice_t *out) { return open_device(__func__, i, NULL, out); }
FN(nvmlDeviceGetHandleByIndex_v2, unsigned int i, nvmlDevice_t *out) { return open_device(__func__, i, NULL, out); }
FN(nvmlDeviceGetHandleByUUID, const char *u, nvmlDevice_t *out) { NEED(u); return open_device(__func__, 0, u, out); }
FN(nvmlDeviceGetHandleByPciBusId, const char *p, nvmlDevice_t *out) { NEED(p); return open_device(__func__, 0, p, out); }
FN(nvmlDeviceGetHandleByPciBusId_v2, const char *p, nvmlDevice_t *out) { NEED(p); return open_device(__func__, 0, p, out); }

/* --- one GPU ---------------------------------------------------------------------------------------------------- */

static nvmlReturn_t pci(const char *fn, nvmlDevice_t device, nvmlPciInfo_t *out)
{
	struct reply r;
	uint64_t h = H(device);
	READY;
	NEED(out);
	OR_RETURN(gpusim_ask(fn, &r, NULL, &h, 1));
	memset(out, 0, sizeof *out);
	out->domain = (unsigned int)r.v[0];
	out->bus = (unsigned int)r.v[1];
	out->device = (unsigned int)r.v[2];
	out->pciDeviceId = (unsigned int)r.v[3];
	out->pciSubSystemId = (unsigned int)r.v[4];
	snprintf(out->busId, sizeof out->busId, "%s", r.text);
	/* The older field has a domain of four digits. */
	snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%s", strlen(r.text) > 4 ? r.text + 4 : "");
	return NVML_SUCCESS;
}

FN(nvmlDeviceGetPciInfo, nvmlDevice_t d, nvmlPciInfo_t *out) { return pci(__func__, d, out); }
FN(nvmlDeviceGetPciInfo_v2, nvmlDevice_t d, nvmlPciInfo_t *out) { return pci(__func__, d, out); }
FN(nvmlDeviceGetPciInfo_v3, nvmlDevice_t d, nvmlPciInfo_t *out) { return pci(__func__, d, out); }

FN(nvmlDeviceGetCudaComputeCapability, nvmlDevice_t device, int *major, int *minor)
{
	struct reply r;
	READY;
	NEED(major, minor);
	OR_RETURN(ASK(&r, NULL, H(device)));
	*major = (int)r.v[0];
	*minor = (int)r.v[1];
	return NVML_SUCCESS;
}

/* The first version counts reserved memory as used. */
FN(nvmlDeviceGetMemoryInfo, nvmlDevice_t device, nvmlMemory_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	OR_RETURN(ASK(&r, NULL, H(device)));
	*out = (nvmlMemory_t){.total = r.v[0], .free = r.v[2], .used = r.v[1] + r.v[3]};
	return NVML_SUCCESS;
}

FN(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t device, nvmlMemory_v2_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	if (out->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	OR_RETURN(ASK(&r, NULL, H(device)));
	out->total = r.v[0];
	out->reserved = r.v[1];
	out->free = r.v[2];
	out->used = r.v[3];
	return NVML_SUCCESS;
}

FN(nvmlDeviceGetUtilizationRates, nvmlDevice_t device, nvmlUtilization_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	OR_RETURN(ASK(&r, NULL, H(device)));
	*out = (nvmlUtilization_t){.gpu = (unsigned int)r.v[0], .memory = (unsigned int)r.v[1]};
	return NVML_SUCCESS;
}

#define SET_MODE(name, type) \
	FN(name, nvmlDevice_t device, type mode) \
	{ \
		struct reply r; \
		READY; \
		return ASK(&r, NULL, H(device), (uint64_t)mode); \
	}
SET_MODE(nvmlDeviceSetComputeMode, nvmlComputeMode_t)
SET_MODE(nvmlDeviceSetPersistenceMode, nvmlEnableState_t)

FN(nvmlDeviceGetFieldValues, nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	struct reply r;
	uint64_t args[64];
	READY;
	NEED(values);
	if (count <= 0 || count > 63)
		return NVML_ERROR_INVALID_ARGUMENT;
	args[0] = H(device);
	for (int i = 0; i < count; i++)
		args[i + 1] = values[i].fieldId;
	OR_RETURN(gpusim_ask(__func__, &r, NULL, args, (size_t)count + 1));
	for (int i = 0; i < count; i++) {
		values[i].timestamp = 0;
		values[i].latencyUsec = 0;
		values[i].nvmlReturn = (nvmlReturn_t)r.v[3 * i];
		values[i].valueType = (nvmlValueType_t)r.v[3 * i + 1];
		values[i].value.ullVal = r.v[3 * i + 2];
	}
	return NVML_SUCCESS;
}

/* --- processes -------------------------------------------------------------------------------------------------- */

/* processes fills the second version of the struct, which the third version of the functions takes. */
static nvmlReturn_t processes(const char *fn, nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *out)
{
	struct reply r;
	uint64_t h = H(device);
	READY;
	NEED(count);
	OR_RETURN(gpusim_ask(fn, &r, NULL, &h, 1));
	unsigned int n = (unsigned int)(r.n / 4), room = *count;
	*count = n;
	if (n > room || (n > 0 && !out))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < n; i++) {
		const uint64_t *v = r.v + 4 * i;
		out[i] = (nvmlProcessInfo_v2_t){(unsigned int)v[0], v[1], (unsigned int)v[2], (unsigned int)v[3]};
	}
	return NVML_SUCCESS;
}

/* The first version of the functions knows no instances. */
static nvmlReturn_t processes_v1(const char *fn, nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *out)
{
	nvmlProcessInfo_v2_t list[256];
	unsigned int n = 256, room = count ? *count : 0;
	NEED(count);
	OR_RETURN(processes(fn, device, &n, list));
	*count = n;
	if (n > room || (n > 0 && !out))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < n; i++)
		out[i] = (nvmlProcessInfo_v1_t){list[i].pid, list[i].usedGpuMemory};
	return NVML_SUCCESS;
}

#define PROCESSES(name) \
	FN(name, nvmlDevice_t d, unsigned int *count, nvmlProcessInfo_v1_t *out) { return processes_v1(__func__, d, count, out); } \
	FN(name##_v2, nvmlDevice_t d, unsigned int *count, nvmlProcessInfo_v2_t *out) { return processes(__func__, d, count, out); } \
	FN(name##_v3, nvmlDevice_t d, unsigned int *count, nvmlProcessInfo_t *out) { return processes(__func__, d, count, out); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)

FN(nvmlSystemGetProcessName, unsigned int pid, char *name, unsigned int length)
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
	size_t n = fread(name, 1, length - 1, f);
	fclose(f);
	name[n] = 0;
	return NVML_SUCCESS;
}

/* The real library asks for room for 100 samples when it is asked how much. */
enum { SAMPLES = 100 };

FN(nvmlDeviceGetProcessUtilization, nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned int *count, unsigned long long since)
{
	struct reply r;
	READY;
	NEED(count);
	OR_RETURN(ASK(&r, NULL, H(device), since));
	unsigned int n = (unsigned int)(r.n / 4), room = *count;
	if (!out || n > room) {
		*count = n > SAMPLES ? n : SAMPLES;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	*count = n;
	for (unsigned int i = 0; i < n; i++) {
		const uint64_t *v = r.v + 4 * i;
		out[i] = (nvmlProcessUtilizationSample_t){.pid = (unsigned int)v[0], .timeStamp = v[1], .smUtil = (unsigned int)v[2], .memUtil = (unsigned int)v[3]};
	}
	return NVML_SUCCESS;
}

FN(nvmlDeviceGetProcessesUtilizationInfo, nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
	struct reply r;
	READY;
	NEED(info);
	if (info->version != nvmlProcessesUtilizationInfo_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	OR_RETURN(ASK(&r, NULL, H(device), info->lastSeenTimeStamp));
	unsigned int n = (unsigned int)(r.n / 4);
	if (!info->procUtilArray || n > info->processSamplesCount) {
		info->processSamplesCount = n > SAMPLES ? n : SAMPLES;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	info->processSamplesCount = n;
	for (unsigned int i = 0; i < n; i++) {
		const uint64_t *v = r.v + 4 * i;
		info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){.timeStamp = v[1], .pid = (unsigned int)v[0], .smUtil = (unsigned int)v[2], .memUtil = (unsigned int)v[3]};
	}
	return NVML_SUCCESS;
}
