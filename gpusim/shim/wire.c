/*
 * The connection of the shim to the process that serves the virtual GPUs: one socket for each thread, closed on exec,
 * opened again in a forked child. Requests and answers are described in gpusim/server.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MIN_NUMBERS = 16, MAX_BODY = 1 << 20, MAX_REQUEST = 4096 };

struct conn {
	int fd;
	pid_t pid;
	uint64_t *body;
	size_t capacity;
};

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void end_thread(void *p)
{
	struct conn *c = p;
	if (c->fd >= 0)
		close(c->fd);
	free(c->body);
	free(c);
}

static void make_key(void) { pthread_key_create(&key, end_thread); }

/* directory returns the directory of the sockets, from the environment, else from the path of this library. */
static int directory(char *out, size_t size)
{
	const char *root = getenv("GPUSIM_ROOT");
	Dl_info self;
	char lib[PATH_MAX];
	int n;
	if (root && *root) {
		n = snprintf(out, size, "%s/run/gpusim", root);
	} else {
		if (!dladdr((void *)make_key, &self) || !realpath(self.dli_fname, lib))
			return -1;
		*strrchr(lib, '/') = 0;
		n = snprintf(out, size, "%s/../../run/gpusim", lib);
	}
	return n > 0 && (size_t)n < size ? 0 : -1;
}

static int dial(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	char dir[PATH_MAX];
	/* Through the directory's descriptor, because a socket address has at most 107 characters. */
	if (directory(dir, sizeof dir))
		return -1;
	int d = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (d < 0)
		return -1;
	snprintf(a.sun_path, sizeof a.sun_path, "/proc/self/fd/%d/nvml.sock", d);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a)) {
		close(fd);
		fd = -1;
	}
	close(d);
	return fd;
}

/* all sends or receives n bytes. */
static int all(int fd, char *p, size_t n, int out)
{
	while (n > 0) {
		ssize_t k = out ? send(fd, p, n, MSG_NOSIGNAL) : recv(fd, p, n, 0);
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return -1;
		p += k;
		n -= (size_t)k;
	}
	return 0;
}

static nvmlReturn_t exchange(struct conn *c, const char *fn, struct reply *r, const char *text, const uint64_t *args, size_t n)
{
	char out[MAX_REQUEST];
	size_t name = strlen(fn), rest = text ? strlen(text) : 0, size = 1 + name + 1 + 8 * n + rest;
	if (size > sizeof out - 4 || name > 255 || n > 255)
		return NVML_ERROR_INVALID_ARGUMENT;
	uint32_t length = (uint32_t)size, head[3];
	memcpy(out, &length, 4);
	out[4] = (char)name;
	memcpy(out + 5, fn, name);
	out[5 + name] = (char)n;
	if (n)
		memcpy(out + 6 + name, args, 8 * n);
	if (rest)
		memcpy(out + 6 + name + 8 * n, text, rest);
	if (all(c->fd, out, size + 4, 1) || all(c->fd, (char *)head, sizeof head, 0) ||
	    head[0] < 8 || head[0] > MAX_BODY || head[2] > (head[0] - 8) / 8)
		goto broken;
	size_t body = head[0] - 8, want = body + 1 + 8 * MIN_NUMBERS;
	if (want > c->capacity) {
		free(c->body);
		c->body = malloc(want);
		c->capacity = c->body ? want : 0;
		if (!c->body)
			goto broken;
	}
	memset(c->body, 0, 8 * MIN_NUMBERS);
	if (all(c->fd, (char *)c->body, body, 0))
		goto broken;
	((char *)c->body)[body] = 0;
	/* The text is after the numbers, or after their minimum space, so that it is never read as numbers. */
	char *words = (char *)c->body + 8 * (size_t)head[2];
	if (head[2] < MIN_NUMBERS) {
		memmove((char *)c->body + 8 * MIN_NUMBERS, words, body - 8 * (size_t)head[2] + 1);
		memset(words, 0, 8 * (MIN_NUMBERS - (size_t)head[2]));
		words = (char *)c->body + 8 * MIN_NUMBERS;
	}
	*r = (struct reply){.n = head[2], .v = c->body, .text = words};
	return (nvmlReturn_t)head[1];
broken:
	close(c->fd);
	c->fd = -1;
	return NVML_ERROR_UNKNOWN;
}

/* ready returns the thread's connection. It connects when there is none, when the peer closed it, and after a fork. */
static struct conn *ready(nvmlReturn_t *ret)
{
	pthread_once(&once, make_key);
	struct conn *c = pthread_getspecific(key);
	if (!c) {
		c = calloc(1, sizeof *c);
		if (!c || pthread_setspecific(key, c)) {
			free(c);
			*ret = NVML_ERROR_MEMORY;
			return NULL;
		}
		c->fd = -1;
		c->pid = getpid();
	}
	int forked = c->pid != getpid();
	if (c->fd >= 0) {
		/* No call is running, so readable means closed. A signal that waits (a Go program's threads get many) ends poll
		   with EINTR, which says nothing about the connection. */
		struct pollfd p = {.fd = c->fd, .events = POLLIN | POLLRDHUP};
		if (forked || poll(&p, 1, 0) > 0) {
			close(c->fd);
			c->fd = -1;
		}
	}
	if (c->fd < 0) {
		c->fd = dial();
		c->pid = getpid();
		if (c->fd < 0) {
			*ret = NVML_ERROR_DRIVER_NOT_LOADED;
			return NULL;
		}
		/* In a forked child the library is initialised, but for the driver it is another process. */
		struct reply r;
		if (forked && atomic_load(&gpusim_inits) > 0)
			exchange(c, "nvmlInit_v2", &r, NULL, NULL, 0);
	}
	return c;
}

nvmlReturn_t gpusim_ask(const char *fn, struct reply *r, const char *text, const uint64_t *args, size_t n)
{
	nvmlReturn_t ret = NVML_ERROR_UNKNOWN;
	struct conn *c = ready(&ret);
	if (!c)
		return ret;
	return exchange(c, fn, r, text, args, n);
}
