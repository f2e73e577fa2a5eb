/*
 * The MIG part and the events of the virtual node's libnvidia-ml.so.1: see nvml.c. Profile, instance and placement numbers
 * travel in the order of the header's structs.
 */
#define _GNU_SOURCE
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "shim.h"

#include <stdio.h>
#include <string.h>

/* --- mode and MIG devices ---------------------------------------------------------------------------------------- */

FN(nvmlDeviceGetMigMode, nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	struct reply r;
	READY;
	NEED(current, pending);
	OR_RETURN(ASK(&r, NULL, H(device)));
	*current = (unsigned int)r.v[0];
	*pending = (unsigned int)r.v[1];
	return NVML_SUCCESS;
}

FN(nvmlDeviceSetMigMode, nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
	struct reply r;
	READY;
	NEED(activation);
	OR_RETURN(ASK(&r, NULL, H(device), mode));
	*activation = (nvmlReturn_t)r.v[0];
	return NVML_SUCCESS;
}

FN(nvmlDeviceGetMigDeviceHandleByIndex, nvmlDevice_t device, unsigned int index, nvmlDevice_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	OR_RETURN(ASK(&r, NULL, H(device), index));
	SET(*out, r.v[0]);
	return NVML_SUCCESS;
}

FN(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, nvmlDevice_t mig, nvmlDevice_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	OR_RETURN(ASK(&r, NULL, H(mig)));
	SET(*out, r.v[0]);
	return NVML_SUCCESS;
}

FN(nvmlDeviceGetAttributes_v2, nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	OR_RETURN(ASK(&r, NULL, H(device)));
	unsigned int *fields[] = {&out->multiprocessorCount, &out->sharedCopyEngineCount, &out->sharedDecoderCount,
		&out->sharedEncoderCount, &out->sharedJpegCount, &out->sharedOfaCount, &out->gpuInstanceSliceCount,
		&out->computeInstanceSliceCount};
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
		*fields[i] = (unsigned int)r.v[i];
	out->memorySizeMB = r.v[8];
	return NVML_SUCCESS;
}

/* --- profiles ---------------------------------------------------------------------------------------------------- */

/* GI_FIELDS fills what all versions of the GPU-instance profile share. */
#define GI_FIELDS(out, v) \
	do { \
		(out)->id = (unsigned int)(v)[0]; \
		(out)->sliceCount = (unsigned int)(v)[2]; \
		(out)->instanceCount = (unsigned int)(v)[3]; \
		(out)->multiprocessorCount = (unsigned int)(v)[4]; \
		(out)->copyEngineCount = (unsigned int)(v)[5]; \
		(out)->decoderCount = (unsigned int)(v)[6]; \
		(out)->encoderCount = (unsigned int)(v)[7]; \
		(out)->jpegCount = (unsigned int)(v)[8]; \
		(out)->ofaCount = (unsigned int)(v)[9]; \
		(out)->memorySizeMB = (v)[10]; \
	} while (0)

FN(nvmlDeviceGetGpuInstanceProfileInfo, nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	OR_RETURN(ASK(&r, NULL, H(device), profile));
	GI_FIELDS(out, r.v);
	out->isP2pSupported = (unsigned int)r.v[1];
	return NVML_SUCCESS;
}

/* gi_profile fills the version that the caller's struct names. The third came with the drivers of variant 580. */
static nvmlReturn_t gi_profile(const char *fn, nvmlDevice_t device, unsigned int profile, nvmlGpuInstanceProfileInfo_v2_t *out)
{
	struct reply r;
	uint64_t args[] = {H(device), profile};
	READY;
	NEED(out);
	if (out->version != nvmlGpuInstanceProfileInfo_v2 && (GPUSIM_DRIVER < 580 || out->version != nvmlGpuInstanceProfileInfo_v3))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	OR_RETURN(gpusim_ask(fn, &r, NULL, args, 2));
	if (out->version == nvmlGpuInstanceProfileInfo_v2) {
		GI_FIELDS(out, r.v);
		out->isP2pSupported = (unsigned int)r.v[1];
		snprintf(out->name, sizeof out->name, "%s", r.text);
		return NVML_SUCCESS;
	}
	nvmlGpuInstanceProfileInfo_v3_t *v3 = (nvmlGpuInstanceProfileInfo_v3_t *)(void *)out;
	GI_FIELDS(v3, r.v);
	snprintf(v3->name, sizeof v3->name, "%s", r.text);
	v3->capabilities = (unsigned int)r.v[11];
	return NVML_SUCCESS;
}

FN(nvmlDeviceGetGpuInstanceProfileInfoV, nvmlDevice_t d, unsigned int p, nvmlGpuInstanceProfileInfo_v2_t *out) { return gi_profile(__func__, d, p, out); }
FN(nvmlDeviceGetGpuInstanceProfileInfoByIdV, nvmlDevice_t d, unsigned int id, nvmlGpuInstanceProfileInfo_v2_t *out) { return gi_profile(__func__, d, id, out); }

#define CI_FIELDS(out, v) \
	do { \
		(out)->id = (unsigned int)(v)[0]; \
		(out)->sliceCount = (unsigned int)(v)[1]; \
		(out)->instanceCount = (unsigned int)(v)[2]; \
		(out)->multiprocessorCount = (unsigned int)(v)[3]; \
		(out)->sharedCopyEngineCount = (unsigned int)(v)[4]; \
		(out)->sharedDecoderCount = (unsigned int)(v)[5]; \
		(out)->sharedEncoderCount = (unsigned int)(v)[6]; \
		(out)->sharedJpegCount = (unsigned int)(v)[7]; \
		(out)->sharedOfaCount = (unsigned int)(v)[8]; \
	} while (0)

FN(nvmlGpuInstanceGetComputeInstanceProfileInfo, nvmlGpuInstance_t gi, unsigned int profile, unsigned int engines, nvmlComputeInstanceProfileInfo_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	OR_RETURN(ASK(&r, NULL, H(gi), profile, engines));
	CI_FIELDS(out, r.v);
	return NVML_SUCCESS;
}

FN(nvmlGpuInstanceGetComputeInstanceProfileInfoV, nvmlGpuInstance_t gi, unsigned int profile, unsigned int engines, nvmlComputeInstanceProfileInfo_v2_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	if (out->version != nvmlComputeInstanceProfileInfo_v2 && (GPUSIM_DRIVER < 580 || out->version != nvmlComputeInstanceProfileInfo_v3))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	OR_RETURN(ASK(&r, NULL, H(gi), profile, engines));
	/* The third version only adds a field at the end. */
	CI_FIELDS(out, r.v);
	snprintf(out->name, sizeof out->name, "%s", r.text);
	if (out->version == nvmlComputeInstanceProfileInfo_v3)
		((nvmlComputeInstanceProfileInfo_v3_t *)(void *)out)->capabilities = (unsigned int)r.v[9];
	return NVML_SUCCESS;
}

/* PLACEMENTS: legal places; with a null array only how many. */
#define PLACEMENTS(name, handle, type) \
	FN(name, handle h, unsigned int profile, type *out, unsigned int *count) \
	{ \
		struct reply r; \
		READY; \
		NEED(count); \
		OR_RETURN(ASK(&r, NULL, H(h), profile)); \
		*count = r.n / 2; \
		for (uint32_t i = 0; out && i < r.n / 2; i++) \
			out[i] = (type){.start = (unsigned int)r.v[2 * i], .size = (unsigned int)r.v[2 * i + 1]}; \
		return NVML_SUCCESS; \
	}
PLACEMENTS(nvmlDeviceGetGpuInstancePossiblePlacements_v2, nvmlDevice_t, nvmlGpuInstancePlacement_t)
PLACEMENTS(nvmlGpuInstanceGetComputeInstancePossiblePlacements, nvmlGpuInstance_t, nvmlComputeInstancePlacement_t)

#define CAPACITY(name, handle) \
	FN(name, handle h, unsigned int profile, unsigned int *count) \
	{ \
		struct reply r; \
		READY; \
		NEED(count); \
		OR_RETURN(ASK(&r, NULL, H(h), profile)); \
		*count = (unsigned int)r.v[0]; \
		return NVML_SUCCESS; \
	}
CAPACITY(nvmlDeviceGetGpuInstanceRemainingCapacity, nvmlDevice_t)
CAPACITY(nvmlGpuInstanceGetComputeInstanceRemainingCapacity, nvmlGpuInstance_t)

/* --- instances --------------------------------------------------------------------------------------------------- */

/* CREATE, CREATE_AT, BY_ID: the handle of one instance. ALL: the handles of those of one profile. */
#define CREATE(name, parent, child) \
	FN(name, parent h, unsigned int which, child *out) \
	{ \
		struct reply r; \
		READY; \
		NEED(out); \
		OR_RETURN(ASK(&r, NULL, H(h), which)); \
		SET(*out, r.v[0]); \
		return NVML_SUCCESS; \
	}
#define CREATE_AT(name, parent, child, place) \
	FN(name, parent h, unsigned int profile, const place *at, child *out) \
	{ \
		struct reply r; \
		READY; \
		NEED(at, out); \
		OR_RETURN(ASK(&r, NULL, H(h), profile, at->start, at->size)); \
		SET(*out, r.v[0]); \
		return NVML_SUCCESS; \
	}
#define ALL(name, parent, child) \
	FN(name, parent h, unsigned int profile, child *out, unsigned int *count) \
	{ \
		struct reply r; \
		READY; \
		NEED(out, count); \
		OR_RETURN(ASK(&r, NULL, H(h), profile)); \
		*count = r.n; \
		for (uint32_t i = 0; i < r.n; i++) \
			SET(out[i], r.v[i]); \
		return NVML_SUCCESS; \
	}
#define DESTROY(name, handle) \
	FN(name, handle h) \
	{ \
		struct reply r; \
		READY; \
		return ASK(&r, NULL, H(h)); \
	}

CREATE(nvmlDeviceCreateGpuInstance, nvmlDevice_t, nvmlGpuInstance_t)
CREATE_AT(nvmlDeviceCreateGpuInstanceWithPlacement, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstancePlacement_t)
DESTROY(nvmlGpuInstanceDestroy, nvmlGpuInstance_t)
ALL(nvmlDeviceGetGpuInstances, nvmlDevice_t, nvmlGpuInstance_t)
CREATE(nvmlDeviceGetGpuInstanceById, nvmlDevice_t, nvmlGpuInstance_t)
CREATE(nvmlGpuInstanceCreateComputeInstance, nvmlGpuInstance_t, nvmlComputeInstance_t)
CREATE_AT(nvmlGpuInstanceCreateComputeInstanceWithPlacement, nvmlGpuInstance_t, nvmlComputeInstance_t, nvmlComputeInstancePlacement_t)
DESTROY(nvmlComputeInstanceDestroy, nvmlComputeInstance_t)
ALL(nvmlGpuInstanceGetComputeInstances, nvmlGpuInstance_t, nvmlComputeInstance_t)
CREATE(nvmlGpuInstanceGetComputeInstanceById, nvmlGpuInstance_t, nvmlComputeInstance_t)

FN(nvmlGpuInstanceGetInfo, nvmlGpuInstance_t gi, nvmlGpuInstanceInfo_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	OR_RETURN(ASK(&r, NULL, H(gi)));
	SET(out->device, r.v[0]);
	out->id = (unsigned int)r.v[1];
	out->profileId = (unsigned int)r.v[2];
	out->placement = (nvmlGpuInstancePlacement_t){.start = (unsigned int)r.v[3], .size = (unsigned int)r.v[4]};
	return NVML_SUCCESS;
}

FN(nvmlComputeInstanceGetInfo_v2, nvmlComputeInstance_t ci, nvmlComputeInstanceInfo_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	OR_RETURN(ASK(&r, NULL, H(ci)));
	SET(out->device, r.v[0]);
	SET(out->gpuInstance, r.v[1]);
	out->id = (unsigned int)r.v[2];
	out->profileId = (unsigned int)r.v[3];
	out->placement = (nvmlComputeInstancePlacement_t){.start = (unsigned int)r.v[4], .size = (unsigned int)r.v[5]};
	return NVML_SUCCESS;
}

/* --- events ------------------------------------------------------------------------------------------------------ */

FN(nvmlEventSetCreate, nvmlEventSet_t *out)
{
	struct reply r;
	READY;
	NEED(out);
	OR_RETURN(ASK(&r, NULL, 0));
	SET(*out, r.v[0]);
	return NVML_SUCCESS;
}

FN(nvmlDeviceRegisterEvents, nvmlDevice_t device, unsigned long long mask, nvmlEventSet_t set)
{
	struct reply r;
	READY;
	return ASK(&r, NULL, H(device), mask, H(set));
}

static nvmlReturn_t wait_event(const char *fn, nvmlEventSet_t set, nvmlEventData_t *out, unsigned int timeout)
{
	struct reply r;
	uint64_t args[] = {H(set), timeout};
	READY;
	NEED(out);
	OR_RETURN(gpusim_ask(fn, &r, NULL, args, 2));
	SET(out->device, r.v[0]);
	out->eventType = r.v[1];
	out->eventData = r.v[2];
	out->gpuInstanceId = (unsigned int)r.v[3];
	out->computeInstanceId = (unsigned int)r.v[4];
	return NVML_SUCCESS;
}

FN(nvmlEventSetWait, nvmlEventSet_t s, nvmlEventData_t *out, unsigned int ms) { return wait_event(__func__, s, out, ms); }
FN(nvmlEventSetWait_v2, nvmlEventSet_t s, nvmlEventData_t *out, unsigned int ms) { return wait_event(__func__, s, out, ms); }

DESTROY(nvmlEventSetFree, nvmlEventSet_t)
