/*
 * gpusim-burn: a process that uses a virtual GPU as a CUDA program uses a real one.
 *
 * It opens the device nodes, creates a context, allocates memory and keeps a queue of kernels full, or with --sync and
 * --think works on the GPU and on the host in turn, or with --every answers requests. It is a small C program, because tests start thousands of them. It knows
 * nothing about leases or limits.
 *
 * Thinking and growing are work of the host, which a frozen process does not do: they take time in which this process ran,
 * not time that passed (see ran). A freeze delays them by its length, as it delays a program that computes.
 *
 * Exit codes: 0 ended by --seconds, 1 refused or lost, 2 out of GPU memory, 64 usage, 77 denied by the device rules,
 * 130 and 143 ended by SIGINT and SIGTERM.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_REFUSED = 1, EXIT_OOM = 2, EXIT_USAGE = 64, EXIT_DENIED = 77 };

static struct {
	const char *root, *gpu;
	uint64_t memory, managed, grow, most; /* bytes, grow per second */
	uint64_t kernel, think, every; /* microseconds */
	uint64_t seed;
	long queue;
	double seconds, jitter;
	int ignore_term, hold, host_dev, sync;
} opt = {.kernel = 5000, .queue = 200, .seed = 1};

static int gpu_fd = -1, mps_fd = -1;
static uint64_t allocated, launched;
static double began;
static double ran; /* seconds in which this process waited or thought while it was not frozen */
static volatile sig_atomic_t got_signal;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static const char *human(uint64_t bytes)
{
	static char out[4][32];
	static int n;
	char *s = out[n++ % 4];
	if (bytes >= 1ull << 30)
		snprintf(s, sizeof out[0], "%.1f GiB", (double)bytes / (1ull << 30));
	else if (bytes >= 1ull << 20)
		snprintf(s, sizeof out[0], "%.1f MiB", (double)bytes / (1ull << 20));
	else
		snprintf(s, sizeof out[0], "%llu bytes", (unsigned long long)bytes);
	return s;
}

__attribute__((noreturn, format(printf, 2, 3))) static void die(int code, const char *fmt, ...)
{
	va_list ap;
	fflush(stdout);
	fputs("gpusim-burn: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(code);
}

/* finish prints the summary and ends the process. */
__attribute__((noreturn)) static void finish(int code)
{
	printf("ran %.1f s, launched %llu kernels of %.3f ms, allocated %s\n", now() - began, (unsigned long long)launched,
	       (double)opt.kernel / 1000, human(allocated));
	fflush(stdout);
	exit(code);
}

static void on_signal(int sig) { got_signal = sig; }

/* check ends the process after a signal or when its time is over; every wait calls it. */
static void check(void)
{
	int sig = got_signal;
	if (sig) {
		got_signal = 0;
		if (sig == SIGTERM && opt.ignore_term) {
			puts("ignoring SIGTERM");
			fflush(stdout);
		} else {
			printf("stopped by %s\n", sig == SIGTERM ? "SIGTERM" : "SIGINT");
			finish(128 + sig);
		}
	}
	if (opt.seconds > 0 && began > 0 && now() - began >= opt.seconds)
		finish(0);
}

/* lost ends the process as a CUDA program ends when its context is destroyed. */
__attribute__((noreturn)) static void lost(const char *what)
{
	fprintf(stderr, "gpusim-burn: %s\n", what);
	finish(EXIT_REFUSED);
}

/* wait_for blocks until fd is readable, a signal arrives, the time is over, or this process has run for some seconds (-1:
 * no limit). It returns 1 when fd is readable. */
static int wait_for(int fd, double limit)
{
	/* A wait that took longer than it should was interrupted by a freeze, or by other programs on the CPU: in the rest of it
	 * this process did not run. The shorter the waits, the less of a freeze is counted. */
	const double step = 0.002, late = 0.001;
	for (double end = ran + limit;;) {
		struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = mps_fd, .events = POLLIN}};
		double t = 1e6, before = now();
		/* A signal after check would not end a wait that has not begun. */
		sigset_t ending, mask;
		sigemptyset(&ending);
		sigaddset(&ending, SIGTERM);
		sigaddset(&ending, SIGINT);
		sigprocmask(SIG_BLOCK, &ending, &mask);
		check();
		if (limit >= 0 && ran >= end) {
			sigprocmask(SIG_SETMASK, &mask, NULL);
			return 0;
		}
		if (opt.grow || limit >= 0)
			t = limit >= 0 && end - ran < step ? end - ran : step;
		if (opt.seconds > 0 && began > 0 && opt.seconds - (before - began) < t)
			t = opt.seconds - (before - began);
		t = t > 0 ? t : 0;
		struct timespec ts = {.tv_sec = (time_t)t, .tv_nsec = (long)((t - (double)(time_t)t) * 1e9)};
		int n = ppoll(p, 2, &ts, &mask), failed = errno;
		sigprocmask(SIG_SETMASK, &mask, NULL);
		double took = now() - before;
		ran += took < t + late ? took : t + late;
		if (n < 0 && failed != EINTR)
			die(EXIT_REFUSED, "cannot wait: %s", strerror(failed));
		check();
		if (n > 0 && mps_fd >= 0 && mps_fd != fd && p[1].revents)
			lost("the MPS server ended the client (CUDA error 810)");
		if (n > 0 && p[0].revents)
			return 1;
	}
}

/* tell sends one line. */
static void tell(const char *fmt, ...)
{
	char line[1024];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(line, sizeof line - 1, fmt, ap);
	va_end(ap);
	if (n >= (int)sizeof line - 1)
		die(EXIT_USAGE, "an argument is too long");
	line[n++] = '\n';
	for (int off = 0; off < n;) {
		ssize_t w = send(gpu_fd, line + off, (size_t)(n - off), MSG_NOSIGNAL);
		if (w < 0 && errno == EINTR) {
			check();
			continue;
		}
		if (w < 0)
			lost("the GPU is lost (CUDA error 999)");
		off += (int)w;
	}
}

/* answer returns the next line that the virtual node sends. What follows it remains for the next call. */
static const char *answer(void)
{
	static char line[1024], buffer[1024];
	static size_t have;
	for (;;) {
		char *end = memchr(buffer, '\n', have);
		if (end) {
			size_t n = (size_t)(end - buffer);
			memcpy(line, buffer, n);
			line[n] = 0;
			have -= n + 1;
			memmove(buffer, end + 1, have);
			return line;
		}
		if (have == sizeof buffer)
			lost("the answer of the virtual node is too long");
		wait_for(gpu_fd, -1);
		ssize_t r = recv(gpu_fd, buffer + have, sizeof buffer - have, 0);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			lost("the GPU is lost (CUDA error 999)");
		have += (size_t)r;
	}
}

/* ask sends one line and returns the line of the answer. */
#define ask(...) (tell(__VA_ARGS__), answer())

/* unix_connect connects to a socket. If its path is too long for an address, it uses a descriptor of the directory. */
static int unix_connect(const char *dir, const char *name, int type)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int d = -1;
	int n = snprintf(a.sun_path, sizeof a.sun_path, "%s/%s", dir, name);
	if (n < 0 || n >= (int)sizeof a.sun_path) {
		d = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (d < 0)
			return -1;
		snprintf(a.sun_path, sizeof a.sun_path, "/proc/self/fd/%d/%s", d, name);
	}
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) < 0) {
		int e = errno;
		close(fd);
		errno = e;
		fd = -1;
	}
	if (d >= 0)
		close(d);
	return fd;
}

/* size parses "4GiB", "512MiB", "1G" (of 1024) or bytes; it returns -1 when s is invalid. */
static int size(const char *s, uint64_t *out)
{
	static const struct {
		const char *unit;
		int shift;
	} units[] = {{"", 0}, {"B", 0}, {"K", 10}, {"KiB", 10}, {"M", 20}, {"MiB", 20}, {"G", 30}, {"GiB", 30}, {"T", 40}, {"TiB", 40}};
	char *end;
	errno = 0;
	double v = strtod(s, &end);
	if (end == s || errno || !(v >= 0))
		return -1;
	for (size_t i = 0; i < sizeof units / sizeof *units; i++)
		if (!strcmp(end, units[i].unit) && v * (double)(1ull << units[i].shift) < 9e18) {
			*out = (uint64_t)(v * (double)(1ull << units[i].shift));
			return 0;
		}
	return -1;
}

/* duration parses "5ms", "250us", "1s" into microseconds; it returns -1 when s is invalid. */
static int duration(const char *s, uint64_t *us)
{
	char *end;
	errno = 0;
	double v = strtod(s, &end), f = !strcmp(end, "us") ? 1 : !strcmp(end, "ms") ? 1e3 : !strcmp(end, "s") ? 1e6 : 0;
	if (end == s || errno || !(v >= 0) || (f == 0 && v != 0) || v * f > 1e12)
		return -1;
	*us = (uint64_t)(v * f);
	return 0;
}

/* visible returns entry n of CUDA_VISIBLE_DEVICES; NULL when it is not set. Of MIG devices CUDA shows a program the first only
 * (MIG User Guide, section on CUDA_VISIBLE_DEVICES). */
static const char *visible(long n)
{
	static char entry[128];
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	if (!list)
		return NULL;
	if (n > 0 && !strncmp(list, "MIG-", 4))
		die(EXIT_REFUSED, "invalid device ordinal (CUDA error 101): a program sees one MIG device");
	for (;; n--) {
		size_t len = strcspn(list, ",");
		if (len == 0 || list[0] == '-')
			die(EXIT_REFUSED, "no CUDA-capable device is detected (CUDA error 100): CUDA_VISIBLE_DEVICES shows none");
		if (n == 0) {
			snprintf(entry, sizeof entry, "%.*s", (int)len, list);
			return entry;
		}
		if (!list[len])
			die(EXIT_REFUSED, "invalid device ordinal (CUDA error 101): CUDA_VISIBLE_DEVICES shows fewer");
		list += len + 1;
	}
}

/* pick_gpu selects the GPU as a CUDA program does: ordinals count the visible devices. */
static const char *pick_gpu(void)
{
	const char *g = NULL;
	char *end;
	if (!opt.gpu)
		g = visible(0);
	else {
		long n = strtol(opt.gpu, &end, 10);
		if (end != opt.gpu && !*end)
			g = visible(n);
	}
	return g ? g : opt.gpu ? opt.gpu : "0";
}

/* driver_limit parses a memory limit as the MPS client library does, with its errors: G is GiB, all other units are MiB. */
static uint64_t driver_limit(const char *s)
{
	char *end;
	long long v = strtoll(s, &end, 10);
	return (uint64_t)v << (*end == 'g' || *end == 'G' ? 30 : 20);
}

/* own_limit is the client's own CUDA_MPS_PINNED_DEVICE_MEM_LIMIT for its first device; a device in the list that it does
 * not know drops the whole list, as the real one does. */
static uint64_t own_limit(const char *gpu)
{
	const char *s = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
	uint64_t limit = 0;
	while (s && *s) {
		size_t key = strcspn(s, "=,"), len = strcspn(s, ",");
		if (s[key] != '=')
			return 0;
		if ((key == 1 && *s == '0') || (key == strlen(gpu) && !strncmp(s, gpu, key)))
			limit = driver_limit(s + key + 1);
		else
			return 0;
		s += len + (s[len] == ',');
	}
	return limit;
}

/* What the control daemon and a client say to each other after the greeting. The vendor's is not published; this is the
 * virtual node's own, see gpusim/mpsd. */
struct mps_hello {
	int32_t type; /* 1: a client (4 is the command line) */
	int32_t pad;
	char gpu[80];
};
struct mps_welcome {
	int32_t error; /* CUDA's number, 0 for none */
	int32_t server;
	uint64_t limit; /* bytes, 0 for none */
	double percent; /* of the GPU's threads */
	char pipe[256]; /* the daemon's own pipe directory: a tenant may know it by another path */
};

static void mps_read(void *buf, size_t want, const char *what)
{
	wait_for(mps_fd, -1);
	ssize_t n = recv(mps_fd, buf, want, 0);
	if (n != (ssize_t)want)
		die(EXIT_REFUSED, "cannot %s: the MPS control daemon went away (CUDA error 805)", what);
}

/* join_mps becomes a client of the control daemon named by the environment. Without one that answers the program runs
 * without MPS and says nothing, as CUDA programs do. */
static int join_mps(const char *gpu, struct mps_welcome *w)
{
	char greeting[9];
	struct mps_hello h = {.type = 1};
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
	if (!dir || !*dir)
		return 0;
	mps_fd = unix_connect(dir, "control", SOCK_SEQPACKET);
	if (mps_fd < 0)
		return 0;
	mps_read(greeting, sizeof greeting, "greet MPS");
	if (memcmp(greeting, "OUTBHELL", 9))
		die(EXIT_REFUSED, "cannot greet MPS: unknown greeting (CUDA error 805)");
	snprintf(h.gpu, sizeof h.gpu, "%s", gpu);
	if (send(mps_fd, "OUTBCRED", 9, MSG_NOSIGNAL) < 0 || send(mps_fd, &h, sizeof h, MSG_NOSIGNAL) < 0)
		die(EXIT_REFUSED, "cannot greet MPS: %s (CUDA error 805)", strerror(errno));
	mps_read(w, sizeof *w, "become an MPS client");
	if (w->error)
		die(EXIT_REFUSED, "cannot become an MPS client: the server is not ready (CUDA error %d)", w->error);

	uint64_t own = own_limit(gpu);
	if (own && (!w->limit || own < w->limit)) /* a client can only lower what the daemon gave */
		w->limit = own;
	const char *p = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	double percent = p ? strtod(p, NULL) : 0;
	if (percent > 0 && percent < w->percent)
		w->percent = percent;
	return 1;
}

/* open_node opens one device node; a refusal by the device rules has its own exit code. */
static void open_node(const char *rel, int flags, int must)
{
	char path[4096];
	if (opt.host_dev)
		snprintf(path, sizeof path, "/dev/%s", rel);
	else
		snprintf(path, sizeof path, "%s/dev/%s", opt.root, rel);
	int fd = open(path, flags); /* kept open and inherited, as in a CUDA program */
	if (fd >= 0 || errno == ENXIO || errno == ENODEV) /* no driver for the node: the device rules allow it */
		return;
	if (errno == EPERM || errno == EACCES)
		die(EXIT_DENIED, "%s: denied by the device rules", path);
	if (must || errno != ENOENT)
		die(EXIT_REFUSED, "cannot open %s: %s", path, strerror(errno));
}

static int make_context(void)
{
	char dir[4096], minor[16], gi[16], ci[16], rel[64];
	struct mps_welcome w = {0};
	const char *gpu = pick_gpu(), *a;

	snprintf(dir, sizeof dir, "%s/run/gpusim", opt.root);
	gpu_fd = unix_connect(dir, "cuda.sock", SOCK_STREAM);
	if (gpu_fd < 0)
		die(EXIT_REFUSED, "cannot reach the virtual node at %s/cuda.sock: %s", dir, strerror(errno));
	if (!join_mps(gpu, &w))
		a = ask("CTX gpu=%s mps=- mpspid=0 limit=0", gpu);
	else if (w.percent > 0 && w.percent < 100)
		a = ask("CTX gpu=%s mps=%.255s mpspid=%d limit=%llu share=%d", gpu, w.pipe, w.server, (unsigned long long)w.limit,
		        w.percent < 1 ? 1 : (int)w.percent);
	else
		a = ask("CTX gpu=%s mps=%.255s mpspid=%d limit=%llu", gpu, w.pipe, w.server, (unsigned long long)w.limit);
	if (!strncmp(a, "ERR ", 4)) {
		char *text;
		long code = strtol(a + 4, &text, 10);
		die(code == 2 ? EXIT_OOM : EXIT_REFUSED, "cannot use GPU %s:%s (CUDA error %ld)", gpu, text, code);
	}
	if (sscanf(a, "OK %15s %15s %15s", minor, gi, ci) != 3)
		die(EXIT_REFUSED, "the virtual node answered %s", a);
	open_node("nvidiactl", O_RDWR, 0);
	open_node("nvidia-uvm", O_RDWR, 0);
	snprintf(rel, sizeof rel, "nvidia%s", minor);
	open_node(rel, O_RDWR, 1);
	if (strcmp(gi, "-")) {
		snprintf(rel, sizeof rel, "nvidia-caps/nvidia-cap%s", gi);
		open_node(rel, O_RDONLY, 1); /* a capability needs read access */
	}
	if (strcmp(ci, "-")) {
		snprintf(rel, sizeof rel, "nvidia-caps/nvidia-cap%s", ci);
		open_node(rel, O_RDONLY, 1);
	}
	return 0;
}

/* allocate allocates memory of a kind, ALLOC or MANAGED, or ends the process. */
static void allocate(const char *kind, uint64_t bytes)
{
	if (!bytes)
		return;
	const char *a = ask("%s %llu", kind, (unsigned long long)bytes);
	if (strncmp(a, "OK", 2)) {
		printf("out of memory after %.3f s\n", now() - began);
		fflush(stdout);
		fprintf(stderr, "gpusim-burn: out of memory (CUDA error 2): requested %s in addition to %s\n", human(bytes), human(allocated));
		finish(EXIT_OOM);
	}
	allocated += bytes;
}

/* grow allocates memory at the rate of --grow, in small steps as frameworks do. */
static void grow(double *last)
{
	const uint64_t small = 1ull << 20, large = 16ull << 20;
	while (opt.grow && (!opt.most || allocated < opt.most)) {
		double due = (double)opt.grow * (ran - *last);
		if (due < (double)small)
			return;
		uint64_t bytes = due < (double)large ? (uint64_t)due & ~(small - 1) : large;
		if (opt.most && bytes > opt.most - allocated)
			bytes = opt.most - allocated;
		*last += (double)bytes / (double)opt.grow;
		allocate("ALLOC", bytes);
	}
}

/* chance returns a number at random in [0, 1). */
static double chance(void)
{
	static uint64_t state;
	if (!state)
		state = opt.seed * 0x9e3779b97f4a7c15ull | 1; /* never 0 */
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (double)(state >> 11) / (double)(1ull << 53);
}

/* vary returns v, changed at random by up to the part --jitter in both directions, at least 1. */
static uint64_t vary(uint64_t v)
{
	if (opt.jitter <= 0)
		return v;
	double out = (double)v * (1 + opt.jitter * (2 * chance() - 1)) + 0.5;
	return out < 1 ? 1 : (uint64_t)out;
}

/* queue_depth sets how many unfinished kernels the GPU accepts. */
static void queue_depth(uint64_t n)
{
	if (strncmp(ask("QUEUE %llu", (unsigned long long)n), "OK", 2))
		lost("the virtual node does not accept a queue of this length");
}

static void launched_ok(uint64_t count)
{
	if (strncmp(answer(), "OK", 2))
		lost("a kernel failed to launch (CUDA error 719)");
	launched += count;
}

static void send_launch(uint64_t count)
{
	tell("LAUNCH %llu %llu", (unsigned long long)vary(opt.kernel), (unsigned long long)count);
}

/* work fills the queue and waits until the GPU has run it. */
static void work(void)
{
	uint64_t count = vary((uint64_t)opt.queue);
	send_launch(count);
	tell("SYNC"); /* without waiting for the answer before: a launch does not wait for the GPU */
	launched_ok(count);
	if (strncmp(answer(), "OK", 2))
		lost("a kernel failed (CUDA error 719)");
}

/* work_and_think works on the GPU, then on the host. */
static void work_and_think(void)
{
	work();
	if (opt.think && wait_for(gpu_fd, (double)vary(opt.think) / 1e6))
		lost("the GPU is lost (CUDA error 999)");
}

/* serve answers one request: it waits until that arrives, runs its kernels and prints how long it took. Requests arrive independently of
 * each other, of the answers and of freezes: the time in which a request waits for an earlier one, or for a thaw, counts. */
static void serve(void)
{
	static double due;
	const double slot = (double)opt.every / 1e6 / 100;
	due = due > 0 ? due : now();
	do
		due += slot; /* in each slot a request arrives with the same chance */
	while (chance() >= 0.01);
	while (now() < due)
		if (wait_for(gpu_fd, due - now() < 0.002 ? due - now() : 0.002))
			lost("the GPU is lost (CUDA error 999)");
	work();
	printf("request %.3f ms\n", (now() - due) * 1e3);
	fflush(stdout);
}

/* fill keeps the queue full: an eighth of it at a time, so that the request that a frozen process has sent is small
 * compared with its queue. With --jitter the queue gets another length each time that it was filled. */
static void fill(void)
{
	static uint64_t n;
	if (opt.jitter > 0 && n++ % 8 == 0)
		queue_depth(vary((uint64_t)opt.queue));
	uint64_t count = opt.queue / 8 > 0 ? (uint64_t)opt.queue / 8 : 1;
	send_launch(count);
	launched_ok(count);
}

__attribute__((noreturn)) static void bad(const char *what, const char *value)
{
	die(EXIT_USAGE, "bad %s \"%s\"; see --help", what, value);
}

static void usage(FILE *out)
{
	fputs("usage: gpusim-burn [--root DIR] [--gpu GPU] [--memory 4GiB] [--kernel 5ms] [--queue 200]\n"
	      "                   [--sync] [--think 30ms] [--every 50ms] [--jitter 0.3] [--seed 1]\n"
	      "                   [--managed SIZE] [--seconds N] [--grow 1GiB/s] [--most SIZE] [--ignore-term] [--hold] [--host-dev]\n"
	      "Uses a virtual GPU: opens its device nodes, allocates memory and keeps a queue of kernels full.\n"
	      "  --root DIR     the virtual node's host root (default $GPUSIM_ROOT)\n"
	      "  --gpu GPU      an ordinal among the visible ones, a GPU UUID or a MIG UUID\n"
	      "                 (default: the first of $CUDA_VISIBLE_DEVICES, or 0)\n"
	      "  --memory SIZE  GPU memory to allocate at the start\n"
	      "  --managed SIZE managed memory to allocate at the start: the driver attributes it to no process\n"
	      "  --kernel TIME  duration of one kernel on the whole GPU (default 5ms)\n"
	      "  --queue N      number of unfinished kernels to keep queued (default 200)\n"
	      "  --sync         wait for all queued kernels before the next ones are launched\n"
	      "  --think TIME   the same, and work on the host for this time in between\n"
	      "  --every TIME   answer requests instead, which arrive at random, one in this time: run the queue for each,\n"
	      "                 and print how long each took\n"
	      "  --jitter PART  vary kernels, queue and thinking at random by up to this part (0 to 0.9)\n"
	      "  --seed N       of the jitter and the requests (default 1)\n"
	      "  --seconds N    end after N seconds\n"
	      "  --grow RATE    continue to allocate at this rate (SIZE or SIZE/s) until it fails\n"
	      "  --most SIZE    with --grow, until it has allocated so much\n"
	      "  --ignore-term  do not end at SIGTERM\n"
	      "  --hold         allocate, but launch no kernels\n"
	      "  --host-dev     open the device nodes below /dev instead of below DIR/dev\n",
	      out);
}

static void parse(int argc, char **argv)
{
	static const struct option longs[] = {
	    {"root", 1, 0, 'r'}, {"gpu", 1, 0, 'g'},     {"memory", 1, 0, 'm'},      {"kernel", 1, 0, 'k'}, {"queue", 1, 0, 'q'},
	    {"grow", 1, 0, 'G'}, {"seconds", 1, 0, 's'}, {"ignore-term", 0, 0, 'i'}, {"hold", 0, 0, 'H'},   {"host-dev", 0, 0, 'D'},
	    {"sync", 0, 0, 'S'}, {"think", 1, 0, 't'}, {"every", 1, 0, 'E'},   {"jitter", 1, 0, 'j'},      {"seed", 1, 0, 'e'},
	    {"managed", 1, 0, 'M'}, {"most", 1, 0, 'T'}, {"help", 0, 0, 'h'}, {0, 0, 0, 0}};
	int c;
	char *end;
	opt.root = getenv("GPUSIM_ROOT");
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1)
		switch (c) {
		case 'r': opt.root = optarg; break;
		case 'g': opt.gpu = optarg; break;
		case 'm':
			if (size(optarg, &opt.memory))
				bad("--memory", optarg);
			break;
		case 'M':
			if (size(optarg, &opt.managed))
				bad("--managed", optarg);
			break;
		case 'k':
			if (duration(optarg, &opt.kernel))
				bad("--kernel", optarg);
			break;
		case 'q':
			opt.queue = strtol(optarg, &end, 10);
			if (end == optarg || *end || opt.queue < 1 || opt.queue > 1000000)
				bad("--queue", optarg);
			break;
		case 's':
			opt.seconds = strtod(optarg, &end);
			if (end == optarg || (*end && strcmp(end, "s")) || !(opt.seconds > 0 && opt.seconds < 1e9))
				bad("--seconds", optarg);
			break;
		case 'G':
			end = strstr(optarg, "/s");
			if (end && !end[2])
				*end = 0;
			if (size(optarg, &opt.grow))
				bad("--grow", optarg);
			break;
		case 'T':
			if (size(optarg, &opt.most))
				bad("--most", optarg);
			break;
		case 't':
			if (duration(optarg, &opt.think))
				bad("--think", optarg);
			opt.sync = 1;
			break;
		case 'E':
			if (duration(optarg, &opt.every) || !opt.every)
				bad("--every", optarg);
			break;
		case 'j':
			opt.jitter = strtod(optarg, &end);
			if (end == optarg || *end || !(opt.jitter >= 0 && opt.jitter <= 0.9))
				bad("--jitter", optarg);
			break;
		case 'e':
			errno = 0;
			opt.seed = strtoull(optarg, &end, 10);
			if (end == optarg || *end || errno || *optarg == '-')
				bad("--seed", optarg);
			break;
		case 'S': opt.sync = 1; break;
		case 'i': opt.ignore_term = 1; break;
		case 'H': opt.hold = 1; break;
		case 'D': opt.host_dev = 1; break;
		case 'h': usage(stdout); exit(0);
		default: usage(stderr); exit(EXIT_USAGE);
		}
	if (optind != argc)
		bad("argument", argv[optind]);
	if (!opt.root || !*opt.root)
		die(EXIT_USAGE, "no virtual node: set GPUSIM_ROOT, or use --root or 'gpusim exec'");
	if (opt.kernel == 0)
		opt.hold = 1;
}

int main(int argc, char **argv)
{
	struct sigaction sa = {.sa_handler = on_signal}; /* no SA_RESTART: waits must see the signal */
	double last;

	parse(argc, argv);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	make_context();
	queue_depth((uint64_t)((double)opt.queue * (1 + opt.jitter)) + (opt.jitter > 0)); /* the longest queue that vary returns */
	began = now();
	allocate("ALLOC", opt.memory);
	allocate("MANAGED", opt.managed);
	puts("ready");
	fflush(stdout);

	for (last = ran;;) {
		grow(&last);
		if (opt.hold) {
			if (wait_for(gpu_fd, opt.grow ? 0.02 : -1))
				lost("the GPU is lost (CUDA error 999)");
		} else if (opt.every)
			serve();
		else if (opt.sync)
			work_and_think();
		else
			fill();
	}
}
