/*
 * SPANK plug-in of gpushare: sbatch, srun and salloc take --gpu-memory and --gpu-share, and the Prolog of the job finds them in its
 * environment as SPANK_GPUSHARE_MEMORY and SPANK_GPUSHARE_SHARE. It only carries the values: gpushared decides what the job gets, and
 * the Prolog takes no more than its shards. An invalid value is refused before the job is submitted.
 */
#include <stdio.h>
#include <string.h>

#include <slurm/spank.h>

SPANK_PLUGIN(gpushare, 1)

enum { MEMORY, SHARE, COUNT };

/* The longest number of a value, in digits. */
enum { MOST_DIGITS = 9 };

/* The values in the form that the Prolog has; empty: not given. */
static char given[COUNT][MOST_DIGITS + sizeof("GiB")];

static const char *const names[COUNT] = {"GPUSHARE_MEMORY", "GPUSHARE_SHARE"};

/* digits counts the digits at the beginning of a text; 0 if they are no number above 0, or too many. */
static size_t digits(const char *text)
{
	size_t n = strspn(text, "0123456789");

	return n > MOST_DIGITS || text[0] == '0' ? 0 : n;
}

/* memory writes an amount such as 12G, 12GiB, 512M as 12GiB, 512MiB. */
static int memory(const char *text, char *out, size_t size)
{
	size_t n = digits(text);
	const char *unit = text + n;

	if (n == 0 || (unit[0] != 'M' && unit[0] != 'G') || (unit[1] != '\0' && strcmp(unit + 1, "iB") != 0))
		return -1;
	snprintf(out, size, "%.*s%ciB", (int)n, text, unit[0]);
	return 0;
}

/* share writes a percentage such as 30 or 30% as 30%. */
static int share(const char *text, char *out, size_t size)
{
	size_t n = digits(text);

	if (n == 0 || n > 3 || (n == 3 && strncmp(text, "100", n) != 0) || (text[n] != '\0' && strcmp(text + n, "%") != 0))
		return -1;
	snprintf(out, size, "%.*s%%", (int)n, text);
	return 0;
}

/* take is called with each option, by the command and again where the job runs: there the values were checked already. */
static int take(int which, const char *text, int remote)
{
	if (remote)
		return 0;
	if (text == NULL)
		text = "";
	if (which == MEMORY && memory(text, given[MEMORY], sizeof(given[MEMORY])) != 0) {
		slurm_error("--gpu-memory=%.40s is an invalid amount of GPU memory: write it as 12G or 512M", text);
		return -1;
	}
	if (which == SHARE && share(text, given[SHARE], sizeof(given[SHARE])) != 0) {
		slurm_error("--gpu-share=%.40s is an invalid share of GPU time: write it as 30%%, from 1%% to 100%%", text);
		return -1;
	}
	return 0;
}

static struct spank_option options[COUNT] = {
	{"gpu-memory", "amount", "GPU memory of the job on a shared GPU of gpushare, as 12G; at most its shards", 1, MEMORY, take},
	{"gpu-share", "percent", "share of the time of a shared GPU of gpushare, as 30%", 1, SHARE, take},
};

int slurm_spank_init(spank_t spank, int argc, char *argv[])
{
	(void)argc;
	(void)argv;
	switch (spank_context()) {
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
	case S_CTX_REMOTE:
		break;
	default:
		return 0; /* No option is read there. */
	}
	for (int i = 0; i < COUNT; i++) {
		spank_err_t failed = spank_option_register(spank, &options[i]);

		if (failed != ESPANK_SUCCESS) {
			slurm_error("cannot add --%s: %s", options[i].name, spank_strerror(failed));
			return -1;
		}
	}
	return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char *argv[])
{
	spank_context_t context = spank_context();

	(void)argc;
	(void)argv;
	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR)
		return 0;
	for (int i = 0; i < COUNT; i++) {
		if (given[i][0] == '\0')
			continue;
		spank_err_t failed = spank_job_control_setenv(spank, names[i], given[i], 1);

		if (failed != ESPANK_SUCCESS) {
			slurm_error("cannot give --%s to the job: %s", options[i].name, spank_strerror(failed));
			return -1;
		}
	}
	return 0;
}
