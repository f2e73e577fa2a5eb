/*
 * The functions of the driver library for which a virtual board has no figures: all return NOT_SUPPORTED. Clients that
 * look up their functions, as most do, would fail with a library that lacks them.
 *
 * The functions ignore the arguments of the real ones, which the C calling conventions allow. So the header with the
 * prototypes is not read here.
 */
#include <stdatomic.h>

extern atomic_int gpusim_inits;

enum { UNINITIALIZED = 1, NOT_SUPPORTED = 3 }; /* as in nvml.h */

static int none(void) { return atomic_load(&gpusim_inits) > 0 ? NOT_SUPPORTED : UNINITIALIZED; }

#define NONE(name) extern int name(void) __attribute__((alias("none"), visibility("default")));

/* In every branch that the virtual node has. */
NONE(nvmlDeviceGetAPIRestriction) NONE(nvmlDeviceGetAccountingBufferSize) NONE(nvmlDeviceGetAccountingPids)
NONE(nvmlDeviceGetAccountingStats) NONE(nvmlDeviceGetActiveVgpus) NONE(nvmlDeviceGetAdaptiveClockInfoStatus)
NONE(nvmlDeviceGetApplicationsClock) NONE(nvmlDeviceGetAutoBoostedClocksEnabled) NONE(nvmlDeviceGetBoardId)
NONE(nvmlDeviceGetBoardPartNumber) NONE(nvmlDeviceGetBrand) NONE(nvmlDeviceGetBridgeChipInfo)
NONE(nvmlDeviceGetBusType) NONE(nvmlDeviceGetClkMonStatus) NONE(nvmlDeviceGetClock) NONE(nvmlDeviceGetCpuAffinity)
NONE(nvmlDeviceGetCpuAffinityWithinScope) NONE(nvmlDeviceGetCreatableVgpus) NONE(nvmlDeviceGetDefaultApplicationsClock)
NONE(nvmlDeviceGetDefaultEccMode) NONE(nvmlDeviceGetDetailedEccErrors) NONE(nvmlDeviceGetDriverModel)
NONE(nvmlDeviceGetDynamicPstatesInfo) NONE(nvmlDeviceGetEncoderCapacity) NONE(nvmlDeviceGetEncoderSessions)
NONE(nvmlDeviceGetEncoderStats) NONE(nvmlDeviceGetFBCSessions) NONE(nvmlDeviceGetFBCStats)
NONE(nvmlDeviceGetFanControlPolicy_v2) NONE(nvmlDeviceGetFanSpeed_v2) NONE(nvmlDeviceGetGpcClkMinMaxVfOffset)
NONE(nvmlDeviceGetGpcClkVfOffset) NONE(nvmlDeviceGetGpuFabricInfo) NONE(nvmlDeviceGetGpuMaxPcieLinkGeneration)
NONE(nvmlDeviceGetGpuOperationMode) NONE(nvmlDeviceGetGridLicensableFeatures_v4) NONE(nvmlDeviceGetGspFirmwareMode)
NONE(nvmlDeviceGetGspFirmwareVersion) NONE(nvmlDeviceGetHandleBySerial) NONE(nvmlDeviceGetHostVgpuMode)
NONE(nvmlDeviceGetInforomConfigurationChecksum) NONE(nvmlDeviceGetInforomImageVersion)
NONE(nvmlDeviceGetInforomVersion) NONE(nvmlDeviceGetIrqNum) NONE(nvmlDeviceGetMaxCustomerBoostClock)
NONE(nvmlDeviceGetMemClkMinMaxVfOffset) NONE(nvmlDeviceGetMemClkVfOffset) NONE(nvmlDeviceGetMemoryAffinity)
NONE(nvmlDeviceGetMemoryBusWidth) NONE(nvmlDeviceGetMemoryErrorCounter) NONE(nvmlDeviceGetMinMaxClockOfPState)
NONE(nvmlDeviceGetMinMaxFanSpeed) NONE(nvmlDeviceGetMultiGpuBoard) NONE(nvmlDeviceGetNumFans)
NONE(nvmlDeviceGetNumGpuCores) NONE(nvmlDeviceGetNvLinkCapability) NONE(nvmlDeviceGetNvLinkUtilizationControl)
NONE(nvmlDeviceGetNvLinkUtilizationCounter) NONE(nvmlDeviceGetNvLinkVersion) NONE(nvmlDeviceGetP2PStatus)
NONE(nvmlDeviceGetPcieLinkMaxSpeed) NONE(nvmlDeviceGetPcieSpeed) NONE(nvmlDeviceGetPgpuMetadataString)
NONE(nvmlDeviceGetPowerManagementMode) NONE(nvmlDeviceGetPowerSource) NONE(nvmlDeviceGetPowerState)
NONE(nvmlDeviceGetRetiredPages) NONE(nvmlDeviceGetRetiredPagesPendingStatus) NONE(nvmlDeviceGetRetiredPages_v2)
NONE(nvmlDeviceGetSupportedClocksThrottleReasons) NONE(nvmlDeviceGetSupportedGraphicsClocks)
NONE(nvmlDeviceGetSupportedMemoryClocks) NONE(nvmlDeviceGetSupportedPerformanceStates)
NONE(nvmlDeviceGetSupportedVgpus) NONE(nvmlDeviceGetTargetFanSpeed) NONE(nvmlDeviceGetThermalSettings)
NONE(nvmlDeviceGetTopologyCommonAncestor) NONE(nvmlDeviceGetTopologyNearestGpus) NONE(nvmlDeviceGetVgpuCapabilities)
NONE(nvmlDeviceGetVgpuMetadata) NONE(nvmlDeviceGetVgpuProcessUtilization) NONE(nvmlDeviceGetVgpuSchedulerCapabilities)
NONE(nvmlDeviceGetVgpuSchedulerLog) NONE(nvmlDeviceGetVgpuSchedulerState) NONE(nvmlDeviceGetVgpuUtilization)
NONE(nvmlDeviceGetViolationStatus) NONE(nvmlDeviceGetVirtualizationMode) NONE(nvmlSystemGetHicVersion)
NONE(nvmlSystemGetTopologyGpuSet)

/* Since branch 550 at the latest; the version scripts leave them out of older ones. */
NONE(nvmlDeviceGetC2cModeInfoV) NONE(nvmlDeviceGetConfComputeGpuAttestationReport)
NONE(nvmlDeviceGetConfComputeGpuCertificate) NONE(nvmlDeviceGetConfComputeMemSizeInfo)
NONE(nvmlDeviceGetConfComputeProtectedMemoryUsage) NONE(nvmlDeviceGetGpuFabricInfoV) NONE(nvmlDeviceGetJpgUtilization)
NONE(nvmlDeviceGetLastBBXFlushTime) NONE(nvmlDeviceGetModuleId) NONE(nvmlDeviceGetNumaNodeId)
NONE(nvmlDeviceGetOfaUtilization) NONE(nvmlDeviceGetPciInfoExt) NONE(nvmlDeviceGetRunningProcessDetailList)
NONE(nvmlDeviceGetSramEccErrorStatus) NONE(nvmlDeviceGetSupportedClocksEventReasons)
NONE(nvmlDeviceGetVgpuHeterogeneousMode) NONE(nvmlDeviceGetVgpuInstancesUtilizationInfo)
NONE(nvmlDeviceGetVgpuProcessesUtilizationInfo) NONE(nvmlDeviceGetVgpuTypeCreatablePlacements)
NONE(nvmlDeviceGetVgpuTypeSupportedPlacements) NONE(nvmlSystemGetConfComputeCapabilities)
NONE(nvmlSystemGetConfComputeGpusReadyState) NONE(nvmlSystemGetConfComputeKeyRotationThresholdInfo)
NONE(nvmlSystemGetConfComputeSettings) NONE(nvmlSystemGetConfComputeState) NONE(nvmlSystemGetNvlinkBwMode)
