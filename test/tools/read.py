"""Reads everything that an NVML client can read of the node and prints it as JSON. Only pynvml, an independent client, calls
the library.

read.py                 prints the readings as one document
read.py partition UUID  sets MIG mode on, which a GPU in use does not activate at once
read.py await UUID      prints a line when it waits for an event of a GPU, then the event
"""

import inspect
import json
import re
import sys
import time
from ctypes import byref, c_uint

import pynvml as nvml


def call(function, *args):
    """The value or the error of a call: NVMLError_NotSupported is "NotSupported"."""
    try:
        return {"value": function(*args)}
    except nvml.NVMLError as e:
        return {"error": type(e).__name__.removeprefix("NVMLError_")}


def listed(function, handle, profile, kind, capacity):
    """The result of calls that fill an array of the caller."""
    array, count = (kind * capacity)(), c_uint(capacity)
    function(handle, profile, array, byref(count))
    return list(array)[: count.value]


def placement(p):
    return {"start": p.start, "size": p.size}


def memory(handle):
    m, m2 = nvml.nvmlDeviceGetMemoryInfo(handle), nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    return {
        "first": {"total": m.total, "used": m.used, "free": m.free},
        "second": {"total": m2.total, "reserved": m2.reserved, "used": m2.used, "free": m2.free},
    }


def processes(handle):
    def of(function):
        none = 0xFFFFFFFF
        return [
            {
                "pid": p.pid,
                "memory": p.usedGpuMemory,
                "gi": None if p.gpuInstanceId == none else p.gpuInstanceId,
                "ci": None if p.computeInstanceId == none else p.computeInstanceId,
                "name": nvml.nvmlSystemGetProcessName(p.pid),
            }
            for p in function(handle)
        ]

    return {
        "compute": of(nvml.nvmlDeviceGetComputeRunningProcesses),
        "graphics": of(nvml.nvmlDeviceGetGraphicsRunningProcesses),
        "mps": of(nvml.nvmlDeviceGetMPSComputeRunningProcesses),
    }


def profile(info, name):
    return {
        "id": info.id,
        "name": name,
        "slices": info.sliceCount,
        "max": info.instanceCount,
        "sms": info.multiprocessorCount,
        "copy": info.copyEngineCount,
        "decoders": info.decoderCount,
        "encoders": info.encoderCount,
        "jpeg": info.jpegCount,
        "ofa": info.ofaCount,
        "memory_mib": info.memorySizeMB,
    }


def profiles(gpu):
    """The profiles by profile number, and how many numbers are refused with each error."""
    found, refused = {}, {}
    for enum in range(0x20):
        answer = call(nvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, enum)
        if "error" in answer:
            refused[answer["error"]] = refused.get(answer["error"], 0) + 1
            continue
        p = profile(answer["value"], answer["value"].name)
        p["first_version"] = profile(nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, enum, 1), p["name"]) == p
        count = c_uint()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, p["id"], None, byref(count))
        p["placements"] = [
            placement(a)
            for a in listed(
                nvml.nvmlDeviceGetGpuInstancePossiblePlacements, gpu, p["id"], nvml.c_nvmlGpuInstancePlacement_t, count.value
            )
        ]
        p["capacity"] = call(nvml.nvmlDeviceGetGpuInstanceRemainingCapacity, gpu, p["id"])
        found[enum] = p
    return {"found": found, "refused": refused}


def instances(gpu, mig):
    if not mig:
        return []
    out = []
    for p in profiles(gpu)["found"].values():
        for gi in listed(nvml.nvmlDeviceGetGpuInstances, gpu, p["id"], nvml.c_nvmlGpuInstance_t, p["max"]):
            info = nvml.nvmlGpuInstanceGetInfo(gi)
            same = nvml.nvmlGpuInstanceGetInfo(nvml.nvmlDeviceGetGpuInstanceById(gpu, info.id))
            if same.profileId != info.profileId or nvml.nvmlDeviceGetUUID(info.device) != nvml.nvmlDeviceGetUUID(gpu):
                raise SystemExit(f"instance {info.id} differs when it is read by id, or is of another GPU")
            out.append(
                {"id": info.id, "profile_id": info.profileId, "placement": placement(info.placement), "compute": compute(gi)}
            )
    return sorted(out, key=lambda i: i["placement"]["start"])


def compute(gi):
    out = []
    for number in range(9):
        answer = call(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, gi, number, 0)
        if "error" in answer:
            continue
        p = answer["value"]
        for ci in listed(nvml.nvmlGpuInstanceGetComputeInstances, gi, p.id, nvml.c_nvmlComputeInstance_t, p.instanceCount):
            info = nvml.nvmlComputeInstanceGetInfo(ci)
            out.append(
                {
                    "id": info.id,
                    "profile_id": info.profileId,
                    "placement": placement(info.placement),
                    "uuid": nvml.nvmlDeviceGetUUID(info.device),
                    "profile": p.name,
                    "sms": p.multiprocessorCount,
                }
            )
    return sorted(out, key=lambda c: c["id"])


def mig_devices(gpu):
    out, refused = [], set()
    capacity = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)
    for i in range(capacity):
        answer = call(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, i)
        if "error" in answer:
            refused.add(answer["error"])
            continue
        d = answer["value"]
        uuid = nvml.nvmlDeviceGetUUID(d)
        a = nvml.nvmlDeviceGetAttributes(d)
        out.append(
            {
                "uuid": uuid,
                "name": nvml.nvmlDeviceGetName(d),
                "is_mig": bool(nvml.nvmlDeviceIsMigDeviceHandle(d)),
                "gi": nvml.nvmlDeviceGetGpuInstanceId(nvml.nvmlDeviceGetHandleByUUID(uuid)),
                "ci": nvml.nvmlDeviceGetComputeInstanceId(d),
                "parent": nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(d)),
                "attributes": {
                    "sms": a.multiprocessorCount,
                    "copy": a.sharedCopyEngineCount,
                    "decoders": a.sharedDecoderCount,
                    "encoders": a.sharedEncoderCount,
                    "jpeg": a.sharedJpegCount,
                    "ofa": a.sharedOfaCount,
                    "gi_slices": a.gpuInstanceSliceCount,
                    "ci_slices": a.computeInstanceSliceCount,
                    "memory_mib": a.memorySizeMB,
                },
                "memory": memory(d),
                "processes": processes(d),
                "utilization": call(lambda: nvml.nvmlDeviceGetUtilizationRates(d).gpu),
                "process_utilization": call(nvml.nvmlDeviceGetProcessUtilization, d, 0).get("error", ""),
            }
        )
    return {"capacity": capacity, "devices": out, "refused": sorted(refused)}


def links(gpu):
    """The peers of links that are up, by address and type, and how many links are down or do not exist."""
    to, down, refused = {}, 0, {}
    for link in range(20):
        state = call(nvml.nvmlDeviceGetNvLinkState, gpu, link)
        if "error" in state:
            refused[state["error"]] = refused.get(state["error"], 0) + 1
        elif not state["value"]:
            down += 1
        else:
            end = nvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link)
            name = f"{end.busId} {end.bus:02x} {nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link)}"
            to[name] = to.get(name, 0) + 1
    return {"to": to, "down": down, "refused": refused}


def gpu(index):
    g = nvml.nvmlDeviceGetHandleByIndex(index)
    pci = nvml.nvmlDeviceGetPciInfo(g)
    uuid = nvml.nvmlDeviceGetUUID(g)
    mig = nvml.nvmlDeviceGetMigMode(g)
    resetless = nvml.nvmlDeviceGetFieldValues(g, [184])[0]
    ago = int((time.time() - 1) * 1e6)

    def by(function, name):
        return nvml.nvmlDeviceGetIndex(function(name))

    return {
        "index": nvml.nvmlDeviceGetIndex(g),
        "by_uuid": by(nvml.nvmlDeviceGetHandleByUUID, uuid),
        "by_pci": by(nvml.nvmlDeviceGetHandleByPciBusId, pci.busId),
        "uuid": uuid,
        "name": nvml.nvmlDeviceGetName(g),
        "minor": nvml.nvmlDeviceGetMinorNumber(g),
        "pci": {
            "id": pci.busId,
            "legacy": pci.busIdLegacy,
            "domain": pci.domain,
            "bus": pci.bus,
            "device": pci.device,
            "board": pci.pciDeviceId,
            "subsystem": pci.pciSubSystemId,
        },
        "compute_mode": nvml.nvmlDeviceGetComputeMode(g),
        "memory": memory(g),
        "mig": {"current": mig[0], "pending": mig[1]},
        "is_mig": bool(nvml.nvmlDeviceIsMigDeviceHandle(g)),
        "resetless": {"error": resetless.nvmlReturn, "value": resetless.value.uiVal},
        "profiles": profiles(g),
        "instances": instances(g, mig[0]),
        "mig_devices": mig_devices(g),
        "processes": processes(g),
        "links": links(g),
        "utilization": call(lambda: nvml.nvmlDeviceGetUtilizationRates(g).gpu),
        "process_utilization": call(
            lambda: [{"pid": s.pid, "sm": s.smUtil} for s in nvml.nvmlDeviceGetProcessUtilization(g, ago)]
        ),
        "utilization_series": call(lambda: series(g, ago)),
        "temperature": call(nvml.nvmlDeviceGetTemperature, g, nvml.NVML_TEMPERATURE_GPU),
        "power": call(nvml.nvmlDeviceGetPowerUsage, g),
        "power_limit": call(nvml.nvmlDeviceGetEnforcedPowerLimit, g),
        "clock": call(nvml.nvmlDeviceGetClockInfo, g, nvml.NVML_CLOCK_SM),
        "fan": call(nvml.nvmlDeviceGetFanSpeed, g),
        "energy": call(nvml.nvmlDeviceGetTotalEnergyConsumption, g),
    }


def series(g, ago):
    """The different values of the GPU's own samples, and the type of a value. The binding reads as many as the library's
    buffer has; those that were not written have the time 0."""
    kind, samples = nvml.nvmlDeviceGetSamples(g, nvml.NVML_GPU_UTILIZATION_SAMPLES, ago)
    return {"type": kind, "percent": sorted({s.sampleValue.uiVal for s in samples if s.timeStamp})}


def lacking():
    """The functions with which this client reads a GPU or the node, and which the library does not have."""
    names = re.findall(r'"(nvml(?:Device|System|GpuInstance|ComputeInstance)(?:Get|Is)\w+)"', inspect.getsource(nvml))
    return sorted(n for n in set(names) if call(nvml._nvmlGetFunctionPointer, n).get("error") == "FunctionNotFound")


def node():
    count = nvml.nvmlDeviceGetCount()
    first = nvml.nvmlDeviceGetHandleByIndex(0)
    return {
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "library": nvml.nvmlSystemGetNVMLVersion(),
        "cuda": nvml.nvmlSystemGetCudaDriverVersion(),
        "gpus": [gpu(i) for i in range(count)],
        "lacking": lacking(),
        "refused": {
            "the GPU behind the last": call(nvml.nvmlDeviceGetHandleByIndex, count).get("error"),
            "a GPU that is not there": call(nvml.nvmlDeviceGetHandleByUUID, "GPU-00000000-0000-0000-0000-000000000000").get("error"),
            "a MIG device that is not there": call(
                nvml.nvmlDeviceGetHandleByUUID, "MIG-00000000-0000-0000-0000-000000000000"
            ).get("error"),
            "memory in a version that is none": call(nvml.nvmlDeviceGetMemoryInfo, first, 0x09000028).get("error"),
        },
    }


def next_event(uuid):
    g, events = nvml.nvmlDeviceGetHandleByUUID(uuid), nvml.nvmlEventSetCreate()
    supported = nvml.nvmlDeviceGetSupportedEventTypes(g)
    nvml.nvmlDeviceRegisterEvents(g, supported, events)
    nothing = call(nvml.nvmlEventSetWait, events, 0).get("error")
    print("waiting", flush=True)
    e = nvml.nvmlEventSetWait(events, 20_000)
    nvml.nvmlEventSetFree(events)
    return {
        "supported": supported,
        "nothing": nothing,
        "uuid": nvml.nvmlDeviceGetUUID(e.device),
        "type": e.eventType,
        "data": e.eventData,
        "gi": e.gpuInstanceId,
        "ci": e.computeInstanceId,
    }


def main(what="node", uuid=""):
    nvml.nvmlInit()
    if what == "partition":
        activation = nvml.nvmlDeviceSetMigMode(nvml.nvmlDeviceGetHandleByUUID(uuid), nvml.NVML_DEVICE_MIG_ENABLE)
        print(json.dumps({"activation": activation}))
    elif what == "await":
        print(json.dumps(next_event(uuid)))
    else:
        print(json.dumps(node()))
    nvml.nvmlShutdown()
    if call(nvml.nvmlDeviceGetCount).get("error") != "Uninitialized":
        raise SystemExit("the library still answers after the last shutdown")


main(*sys.argv[1:])
