/*
 * The MIG part and the events of the virtual node's libnvidia-ml.so.1: see nvml.c. Profile, instance and placement numbers
 * travel in the order of the header's structs.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <stdio.h>
#include <string.h>

#ifndef GPUSIM_DRIVER
#define GPUSIM_DRIVER 580
#endif

/* --- mode and MIG devices ---------------------------------------------------------------------------------------- */

CALL(nvmlDeviceGetMigMode, (nvmlDevice_t d, uint *current, uint *pending), (current, pending), (H(d)),
     *current = (uint)v[0]; *pending = (uint)v[1])
CALL(nvmlDeviceSetMigMode, (nvmlDevice_t d, uint mode, nvmlReturn_t *activation), (activation), (H(d), mode),
     *activation = (nvmlReturn_t)v[0])
ONE(nvmlDeviceGetMaxMigDeviceCount, nvmlDevice_t, uint)
ONE(nvmlDeviceIsMigDeviceHandle, nvmlDevice_t, uint)
ONE(nvmlDeviceGetGpuInstanceId, nvmlDevice_t, uint)
ONE(nvmlDeviceGetComputeInstanceId, nvmlDevice_t, uint)
CALL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (nvmlDevice_t d, nvmlDevice_t *out), (out), (H(d)), SET(*out, v[0]))
CALL(nvmlDeviceGetAttributes_v2, (nvmlDevice_t d, nvmlDeviceAttributes_t *out), (out), (H(d)),
     *out = (nvmlDeviceAttributes_t){(uint)v[0], (uint)v[1], (uint)v[2], (uint)v[3], (uint)v[4], (uint)v[5], (uint)v[6], (uint)v[7], v[8]})

/* --- profiles ---------------------------------------------------------------------------------------------------- */

/* GI_FIELDS fills what all versions of the GPU-instance profile share. */
#define GI_FIELDS(out, v) \
	do { \
		(out)->id = (uint)(v)[0]; \
		(out)->sliceCount = (uint)(v)[2]; \
		(out)->instanceCount = (uint)(v)[3]; \
		(out)->multiprocessorCount = (uint)(v)[4]; \
		(out)->copyEngineCount = (uint)(v)[5]; \
		(out)->decoderCount = (uint)(v)[6]; \
		(out)->encoderCount = (uint)(v)[7]; \
		(out)->jpegCount = (uint)(v)[8]; \
		(out)->ofaCount = (uint)(v)[9]; \
		(out)->memorySizeMB = (v)[10]; \
	} while (0)

CALL(nvmlDeviceGetGpuInstanceProfileInfo, (nvmlDevice_t d, uint profile, nvmlGpuInstanceProfileInfo_t *out), (out), (H(d), profile),
     GI_FIELDS(out, v); out->isP2pSupported = (uint)v[1])

/* gi_profile fills the version of the caller's struct. Version 3 exists in variant 580. */
static nvmlReturn_t gi_profile(const char *fn, nvmlDevice_t d, uint profile, nvmlGpuInstanceProfileInfo_v2_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	if (out->version != nvmlGpuInstanceProfileInfo_v2 && (GPUSIM_DRIVER < 580 || out->version != nvmlGpuInstanceProfileInfo_v3))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	OR_RETURN(ASK(fn, &r, H(d), profile));
	if (out->version == nvmlGpuInstanceProfileInfo_v2) {
		GI_FIELDS(out, r.v);
		out->isP2pSupported = (uint)r.v[1];
		snprintf(out->name, sizeof out->name, "%s", r.text);
		return NVML_SUCCESS;
	}
	nvmlGpuInstanceProfileInfo_v3_t *v3 = (nvmlGpuInstanceProfileInfo_v3_t *)(void *)out;
	GI_FIELDS(v3, r.v);
	snprintf(v3->name, sizeof v3->name, "%s", r.text);
	v3->capabilities = (uint)r.v[11];
	return NVML_SUCCESS;
}

#define GI_PROFILE(name) FN(name, nvmlDevice_t d, uint p, nvmlGpuInstanceProfileInfo_v2_t *out) { return gi_profile(#name, d, p, out); }
GI_PROFILE(nvmlDeviceGetGpuInstanceProfileInfoV)
GI_PROFILE(nvmlDeviceGetGpuInstanceProfileInfoByIdV)

#define CI_FIELDS(out, v) \
	do { \
		(out)->id = (uint)(v)[0]; \
		(out)->sliceCount = (uint)(v)[1]; \
		(out)->instanceCount = (uint)(v)[2]; \
		(out)->multiprocessorCount = (uint)(v)[3]; \
		(out)->sharedCopyEngineCount = (uint)(v)[4]; \
		(out)->sharedDecoderCount = (uint)(v)[5]; \
		(out)->sharedEncoderCount = (uint)(v)[6]; \
		(out)->sharedJpegCount = (uint)(v)[7]; \
		(out)->sharedOfaCount = (uint)(v)[8]; \
	} while (0)

CALL(nvmlGpuInstanceGetComputeInstanceProfileInfo, (nvmlGpuInstance_t g, uint profile, uint engines, nvmlComputeInstanceProfileInfo_t *out), (out), (H(g), profile, engines),
     CI_FIELDS(out, v))

FN(nvmlGpuInstanceGetComputeInstanceProfileInfoV, nvmlGpuInstance_t g, uint profile, uint engines, nvmlComputeInstanceProfileInfo_v2_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	if (out->version != nvmlComputeInstanceProfileInfo_v2 && (GPUSIM_DRIVER < 580 || out->version != nvmlComputeInstanceProfileInfo_v3))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	OR_RETURN(ASK(__func__, &r, H(g), profile, engines));
	/* Version 3 only adds a field at the end. */
	CI_FIELDS(out, r.v);
	snprintf(out->name, sizeof out->name, "%s", r.text);
	if (out->version == nvmlComputeInstanceProfileInfo_v3)
		((nvmlComputeInstanceProfileInfo_v3_t *)(void *)out)->capabilities = (uint)r.v[9];
	return NVML_SUCCESS;
}

/* PLACEMENTS answers the legal placements; with a null array only their number. */
#define PLACEMENTS(name, parent, type) \
	CALL(name, (parent h, uint profile, type *out, uint *count), (count), (H(h), profile), *count = r.n / 2; \
	     for (uint i = 0; out && i < *count; i++, v += 2) out[i] = (type){(uint)v[0], (uint)v[1]})
PLACEMENTS(nvmlDeviceGetGpuInstancePossiblePlacements_v2, nvmlDevice_t, nvmlGpuInstancePlacement_t)
PLACEMENTS(nvmlGpuInstanceGetComputeInstancePossiblePlacements, nvmlGpuInstance_t, nvmlComputeInstancePlacement_t)
ONE_OF(nvmlDeviceGetGpuInstanceRemainingCapacity, nvmlDevice_t, uint, uint)
ONE_OF(nvmlGpuInstanceGetComputeInstanceRemainingCapacity, nvmlGpuInstance_t, uint, uint)

/* --- instances --------------------------------------------------------------------------------------------------- */

/* CHILD is a function that answers the handle of one instance, CHILD_AT one that makes it at a place, CHILDREN one that
 * answers the handles of all of a profile, END one that takes a handle and answers nothing. */
#define CHILD(name, parent, child) CALL(name, (parent h, uint which, child *out), (out), (H(h), which), SET(*out, v[0]))
#define CHILD_AT(name, parent, child, place) \
	CALL(name, (parent h, uint profile, const place *at, child *out), (at, out), (H(h), profile, at->start, at->size), SET(*out, v[0]))
#define CHILDREN(name, parent, child) \
	CALL(name, (parent h, uint profile, child *out, uint *count), (out, count), (H(h), profile), *count = r.n; \
	     for (uint i = 0; i < r.n; i++) SET(out[i], v[i]))
#define END(name, type) CALL(name, (type h), (""), (H(h)), )

CHILD(nvmlDeviceCreateGpuInstance, nvmlDevice_t, nvmlGpuInstance_t)
CHILD_AT(nvmlDeviceCreateGpuInstanceWithPlacement, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstancePlacement_t)
END(nvmlGpuInstanceDestroy, nvmlGpuInstance_t)
CHILDREN(nvmlDeviceGetGpuInstances, nvmlDevice_t, nvmlGpuInstance_t)
CHILD(nvmlDeviceGetGpuInstanceById, nvmlDevice_t, nvmlGpuInstance_t)
CHILD(nvmlGpuInstanceCreateComputeInstance, nvmlGpuInstance_t, nvmlComputeInstance_t)
CHILD_AT(nvmlGpuInstanceCreateComputeInstanceWithPlacement, nvmlGpuInstance_t, nvmlComputeInstance_t, nvmlComputeInstancePlacement_t)
END(nvmlComputeInstanceDestroy, nvmlComputeInstance_t)
CHILDREN(nvmlGpuInstanceGetComputeInstances, nvmlGpuInstance_t, nvmlComputeInstance_t)
CHILD(nvmlGpuInstanceGetComputeInstanceById, nvmlGpuInstance_t, nvmlComputeInstance_t)
CHILD(nvmlDeviceGetMigDeviceHandleByIndex, nvmlDevice_t, nvmlDevice_t)

CALL(nvmlGpuInstanceGetInfo, (nvmlGpuInstance_t g, nvmlGpuInstanceInfo_t *out), (out), (H(g)),
     SET(out->device, v[0]); out->id = (uint)v[1]; out->profileId = (uint)v[2];
     out->placement = (nvmlGpuInstancePlacement_t){(uint)v[3], (uint)v[4]})
/* The first version has no placement. */
CALL(nvmlComputeInstanceGetInfo, (nvmlComputeInstance_t c, nvmlComputeInstanceInfo_t *out), (out), (H(c)),
     SET(out->device, v[0]); SET(out->gpuInstance, v[1]); out->id = (uint)v[2]; out->profileId = (uint)v[3])
CALL(nvmlComputeInstanceGetInfo_v2, (nvmlComputeInstance_t c, nvmlComputeInstanceInfo_t *out), (out), (H(c)),
     SET(out->device, v[0]); SET(out->gpuInstance, v[1]); out->id = (uint)v[2]; out->profileId = (uint)v[3];
     out->placement = (nvmlComputeInstancePlacement_t){(uint)v[4], (uint)v[5]})

/* --- events ------------------------------------------------------------------------------------------------------ */

CALL(nvmlEventSetCreate, (nvmlEventSet_t *out), (out), (0), SET(*out, v[0]))
END(nvmlEventSetFree, nvmlEventSet_t)
ONE(nvmlDeviceGetSupportedEventTypes, nvmlDevice_t, unsigned long long)
CALL(nvmlDeviceRegisterEvents, (nvmlDevice_t d, unsigned long long mask, nvmlEventSet_t set), (""), (H(d), mask, H(set)), )

/* The wait is a request that is answered late. It blocks the socket of this thread, not those of other threads. */
#define WAIT(name) \
	CALL(name, (nvmlEventSet_t set, nvmlEventData_t *out, uint timeout), (out), (H(set), timeout), \
	     SET(out->device, v[0]); out->eventType = v[1]; out->eventData = v[2]; out->gpuInstanceId = (uint)v[3]; out->computeInstanceId = (uint)v[4])
WAIT(nvmlEventSetWait)
WAIT(nvmlEventSetWait_v2)

/* --- the counters of GPU instances ------------------------------------------------------------------------------- */

FN(nvmlGpmQueryDeviceSupport, nvmlDevice_t d, nvmlGpmSupport_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	if (out->version != NVML_GPM_SUPPORT_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	OR_RETURN(ASK(__func__, &r, H(d)));
	out->isSupportedDevice = (uint)r.v[0];
	return NVML_SUCCESS;
}

CALL(nvmlGpmSampleAlloc, (nvmlGpmSample_t *out), (out), (0), SET(*out, v[0]))
CALL(nvmlGpmSampleFree, (nvmlGpmSample_t s), (""), (H(s)), )
CALL(nvmlGpmMigSampleGet, (nvmlDevice_t d, uint gi, nvmlGpmSample_t s), (""), (H(d), gi, H(s)), )

FN(nvmlGpmMetricsGet, nvmlGpmMetricsGet_t *get)
{
	struct reply r;
	uint64_t args[34];
	READY;
	NEED(get);
	if (get->version != NVML_GPM_METRICS_GET_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (get->numMetrics == 0 || get->numMetrics > 32)
		return NVML_ERROR_INVALID_ARGUMENT;
	args[0] = H(get->sample1);
	args[1] = H(get->sample2);
	for (uint i = 0; i < get->numMetrics; i++)
		args[i + 2] = get->metrics[i].metricId;
	OR_RETURN(gpusim_ask(__func__, &r, NULL, args, get->numMetrics + 2));
	for (uint i = 0; i < get->numMetrics; i++) {
		get->metrics[i].nvmlReturn = (nvmlReturn_t)r.v[2 * i];
		memcpy(&get->metrics[i].value, &r.v[2 * i + 1], sizeof get->metrics[i].value);
	}
	return NVML_SUCCESS;
}
