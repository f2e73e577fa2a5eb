/* A client of the driver library, like other programs: it loads the library by name and looks up its functions. */
#define _GNU_SOURCE
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include "nvml.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *lib;

static void *sym(const char *name)
{
	void *p = dlsym(lib, name);
	if (!p) {
		printf("missing %s\n", name);
		exit(127);
	}
	return p;
}
#define F(name) ((__typeof__(&name))sym(#name))
#define MUST(call) \
	do { \
		nvmlReturn_t ret = (call); \
		if (ret != NVML_SUCCESS) { \
			printf("line %d: %s gave %d\n", __LINE__, #call, ret); \
			exit(1); \
		} \
	} while (0)

static nvmlDevice_t gpu(unsigned int i)
{
	nvmlDevice_t d;
	MUST(F(nvmlDeviceGetHandleByIndex_v2)(i, &d));
	return d;
}

static nvmlGpuInstance_t make(nvmlDevice_t d, unsigned int profile, unsigned int start, unsigned int size)
{
	nvmlGpuInstance_t gi;
	nvmlGpuInstancePlacement_t at = {start, size};
	MUST(F(nvmlDeviceCreateGpuInstanceWithPlacement)(d, profile, &at, &gi));
	return gi;
}

static void lifecycle(void)
{
	unsigned int n, current, pending, count;
	nvmlReturn_t activation;
	char text[96];
	MUST(F(nvmlDeviceGetCount_v2)(&n));
	printf("gpus %u\n", n);
	nvmlDevice_t d = gpu(0), mig;
	MUST(F(nvmlDeviceGetName)(d, text, sizeof text));
	printf("name %s\n", text);
	printf("short buffer %d\n", F(nvmlDeviceGetName)(d, text, 4));
	nvmlPciInfo_t pci;
	MUST(F(nvmlDeviceGetPciInfo_v3)(d, &pci));
	printf("pci %s %s bus %u id %08X\n", pci.busId, pci.busIdLegacy, pci.bus, pci.pciDeviceId);
	nvmlMemory_v2_t m = {.version = nvmlMemory_v2};
	MUST(F(nvmlDeviceGetMemoryInfo_v2)(d, &m));
	nvmlMemory_t m1;
	MUST(F(nvmlDeviceGetMemoryInfo)(d, &m1));
	printf("memory adds up %d, first version counts reserved %d\n", m.total == m.reserved + m.used + m.free, m1.used == m.used + m.reserved);
	m.version = 7;
	printf("wrong version %d\n", F(nvmlDeviceGetMemoryInfo_v2)(d, &m));
	MUST(F(nvmlDeviceSetMigMode)(d, NVML_DEVICE_MIG_ENABLE, &activation));
	MUST(F(nvmlDeviceGetMigMode)(d, &current, &pending));
	printf("mig %u %u activation %d\n", current, pending, activation);
	nvmlGpuInstanceProfileInfo_v2_t p = {.version = nvmlGpuInstanceProfileInfo_v2};
	MUST(F(nvmlDeviceGetGpuInstanceProfileInfoV)(d, NVML_GPU_INSTANCE_PROFILE_3_SLICE, &p));
	printf("profile %s id %u slices %u max %u sm %u memory %llu\n", p.name, p.id, p.sliceCount, p.instanceCount, p.multiprocessorCount, p.memorySizeMB);
	nvmlGpuInstancePlacement_t at[8];
	MUST(F(nvmlDeviceGetGpuInstancePossiblePlacements_v2)(d, p.id, NULL, &count));
	MUST(F(nvmlDeviceGetGpuInstancePossiblePlacements_v2)(d, p.id, at, &count));
	printf("placements %u: %u:%u %u:%u\n", count, at[0].start, at[0].size, at[1].start, at[1].size);
	nvmlGpuInstance_t gi = make(d, p.id, 4, 4), again;
	nvmlGpuInstancePlacement_t same = {4, 4};
	printf("occupied %d\n", F(nvmlDeviceCreateGpuInstanceWithPlacement)(d, p.id, &same, &again));
	nvmlComputeInstanceProfileInfo_t c;
	MUST(F(nvmlGpuInstanceGetComputeInstanceProfileInfo)(gi, NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE, 0, &c));
	nvmlComputeInstance_t ci;
	MUST(F(nvmlGpuInstanceCreateComputeInstance)(gi, c.id, &ci));
	nvmlComputeInstanceInfo_t info;
	MUST(F(nvmlComputeInstanceGetInfo_v2)(ci, &info));
	char uuid[96], walked[96];
	MUST(F(nvmlDeviceGetUUID)(info.device, uuid, sizeof uuid));
	MUST(F(nvmlDeviceGetMigDeviceHandleByIndex)(d, 0, &mig));
	MUST(F(nvmlDeviceGetUUID)(mig, walked, sizeof walked));
	printf("uuid %.4s walked to the same %d\n", uuid, !strcmp(uuid, walked));
	nvmlDeviceAttributes_t a;
	MUST(F(nvmlDeviceGetAttributes_v2)(mig, &a));
	printf("attributes sm %u gi %u ci %u memory %llu\n", a.multiprocessorCount, a.gpuInstanceSliceCount, a.computeInstanceSliceCount, a.memorySizeMB);
	nvmlGpuInstance_t list[8];
	MUST(F(nvmlDeviceGetGpuInstances)(d, p.id, list, &count));
	nvmlGpuInstanceInfo_t g;
	MUST(F(nvmlGpuInstanceGetInfo)(list[0], &g));
	printf("instances %u: id %u profile %u at %u:%u\n", count, g.id, g.profileId, g.placement.start, g.placement.size);
	printf("in use %d\n", F(nvmlGpuInstanceDestroy)(gi));
	MUST(F(nvmlComputeInstanceDestroy)(ci));
	MUST(F(nvmlGpuInstanceDestroy)(gi));
	printf("stale %d\n", F(nvmlGpuInstanceGetInfo)(gi, &g));
	nvmlFieldValue_t fields[2] = {{.fieldId = NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED}, {.fieldId = 9999}};
	MUST(F(nvmlDeviceGetFieldValues)(d, 2, fields));
	printf("fields %d %llu, %d\n", fields[0].nvmlReturn, fields[0].value.ullVal, fields[1].nvmlReturn);
	count = 0;
	printf("processes %d", F(nvmlDeviceGetComputeRunningProcesses_v3)(d, &count, NULL));
	printf(" %u\n", count);
	printf("null %d\n", F(nvmlDeviceGetMigMode)(d, NULL, &pending));
	MUST(F(nvmlDeviceSetMigMode)(d, NVML_DEVICE_MIG_DISABLE, &activation));
}

static void *many(void *arg)
{
	long calls = (long)arg;
	char text[96];
	for (long i = 0; i < calls; i++)
		MUST(F(nvmlDeviceGetUUID)(gpu((unsigned int)(i % 2)), text, sizeof text));
	return NULL;
}

static nvmlEventSet_t set;

static void *waiter(void *arg)
{
	nvmlEventData_t e;
	(void)arg;
	MUST(F(nvmlEventSetWait_v2)(set, &e, 20000));
	printf("event %#llx data %llu gi %u\n", e.eventType, e.eventData, e.gpuInstanceId);
	return NULL;
}

/* One thread waits for an event while eight others make calls; then the event occurs. */
static void threads(void)
{
	pthread_t t[8], w;
	unsigned long long can;
	nvmlDevice_t d = gpu(1);
	nvmlReturn_t activation;
	MUST(F(nvmlDeviceSetMigMode)(d, NVML_DEVICE_MIG_ENABLE, &activation));
	MUST(F(nvmlDeviceGetSupportedEventTypes)(d, &can));
	MUST(F(nvmlEventSetCreate)(&set));
	MUST(F(nvmlDeviceRegisterEvents)(d, can & 0x100, set));
	nvmlEventData_t e;
	printf("nothing yet %d\n", F(nvmlEventSetWait_v2)(set, &e, 10));
	pthread_create(&w, NULL, waiter, NULL);
	for (int i = 0; i < 8; i++)
		pthread_create(&t[i], NULL, many, (void *)200L);
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	puts("calls done");
	nvmlGpuInstance_t gi = make(d, 19, 6, 1);
	pthread_join(w, NULL);
	MUST(F(nvmlGpuInstanceDestroy)(gi));
	MUST(F(nvmlEventSetFree)(set));
	MUST(F(nvmlDeviceSetMigMode)(d, NVML_DEVICE_MIG_DISABLE, &activation));
}

/* The child uses the library that its parent initialised, at the same time as the parent. */
static void forked(void)
{
	nvmlDevice_t d = gpu(0);
	char text[96];
	fflush(stdout);
	pid_t pid = fork();
	for (int i = 0; i < 500; i++)
		MUST(F(nvmlDeviceGetUUID)(d, text, sizeof text));
	if (!pid) {
		puts("child done");
		fflush(stdout);
		_exit(0);
	}
	int status;
	waitpid(pid, &status, 0);
	printf("parent done, child %d\n", status);
}

/* The peers of the NVLinks of each GPU: the first two, and the first numbers beyond those of the board and the library. */
static void links(void)
{
	unsigned int n, at[] = {0, 1, 12, 18};
	nvmlEnableState_t up;
	nvmlIntNvLinkDeviceType_t kind;
	MUST(F(nvmlDeviceGetCount_v2)(&n));
	for (unsigned int i = 0; i < n; i++)
		for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
			nvmlPciInfo_t pci = {0};
			nvmlReturn_t ret = F(nvmlDeviceGetNvLinkState)(gpu(i), at[k], &up);
			printf("gpu %u link %u", i, at[k]);
			if (ret != NVML_SUCCESS || !up) {
				printf(" %s %d end %d pci %d\n", ret ? "none" : "down", ret, F(nvmlDeviceGetNvLinkRemoteDeviceType)(gpu(i), at[k], &kind),
				       F(nvmlDeviceGetNvLinkRemotePciInfo_v2)(gpu(i), at[k], &pci));
				continue;
			}
			MUST(F(nvmlDeviceGetNvLinkRemoteDeviceType)(gpu(i), at[k], &kind));
			MUST(F(nvmlDeviceGetNvLinkRemotePciInfo_v2)(gpu(i), at[k], &pci));
			printf(" end %d pci %s %s bus %x id %08X\n", kind, pci.busId, pci.busIdLegacy, pci.bus, pci.pciDeviceId);
		}
	printf("null %d\n", F(nvmlDeviceGetNvLinkState)(gpu(0), 0, NULL));
}

static pthread_t caller;
static atomic_int finished;

static void ignore(int sig) { (void)sig; }

static void *signaller(void *arg)
{
	while (!atomic_load(&finished))
		pthread_kill(caller, SIGURG);
	return arg;
}

/* A thread makes calls while it is interrupted by signals, as the runtime of a Go program does it. */
static void interrupted(void)
{
	pthread_t t;
	struct sigaction act = {.sa_handler = ignore, .sa_flags = SA_RESTART};
	sigaction(SIGURG, &act, NULL);
	caller = pthread_self();
	pthread_create(&t, NULL, signaller, NULL);
	many((void *)2000L);
	atomic_store(&finished, 1);
	pthread_join(t, NULL);
	puts("calls done");
}

/* Sockets are closed on exec. */
static void sockets(void)
{
	int n = 0;
	char path[300], to[300];
	DIR *dir = opendir("/proc/self/fd");
	for (struct dirent *e; (e = readdir(dir));) {
		snprintf(path, sizeof path, "/proc/self/fd/%.64s", e->d_name);
		ssize_t k = readlink(path, to, sizeof to - 1);
		n += k > 7 && !strncmp(to, "socket:", 7);
	}
	closedir(dir);
	printf("sockets %d\n", n);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (!strcmp(what, "sockets"))
		return sockets(), 0;
	lib = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
	if (!lib) {
		printf("%s\n", dlerror());
		return 1;
	}
	if (!strcmp(what, "symbols")) {
		for (int i = 2; i < argc; i++)
			if (!dlsym(lib, argv[i]))
				printf("lacks %s\n", argv[i]);
		return 0;
	}
	unsigned int n;
	if (!strcmp(what, "init")) {
		printf("before %d\n", F(nvmlDeviceGetCount_v2)(&n));
		printf("init %d\n", F(nvmlInit_v2)());
		return 0;
	}
	MUST(F(nvmlInit_v2)());
	if (!strcmp(what, "lifecycle"))
		lifecycle();
	else if (!strcmp(what, "links"))
		links();
	else if (!strcmp(what, "threads"))
		threads();
	else if (!strcmp(what, "fork"))
		forked();
	else if (!strcmp(what, "interrupted"))
		interrupted();
	else if (!strcmp(what, "exec")) {
		gpu(0);
		execl("/proc/self/exe", argv[0], "sockets", NULL);
	} else if (!strcmp(what, "hold")) {
		gpu(0);
		puts("holding");
		fflush(stdout);
		char text[96];
		while (fgets(text, sizeof text, stdin))
			printf("count %d\n", F(nvmlDeviceGetCount_v2)(&n)), fflush(stdout);
	}
	MUST(F(nvmlShutdown)());
	printf("after %d\n", F(nvmlDeviceGetCount_v2)(&n));
	return 0;
}
