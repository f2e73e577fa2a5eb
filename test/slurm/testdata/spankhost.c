/*
 * A command of Slurm as far as a SPANK plug-in sees it: 'host PLUGIN CONTEXT [NAME=VALUE…]' loads the plug-in, gives it these options, and
 * prints what it sets for the Prolog. It exits with 1 if the plug-in refuses.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/spank.h>

static spank_context_t context;
static struct spank_option *options[8];
static int count;

spank_context_t spank_context(void) { return context; }
const char *spank_strerror(spank_err_t err) { (void)err; return "refused by the test"; }

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
	(void)spank;
	if (count == 8 || strlen(option->name) > SPANK_OPTION_MAXLEN)
		return ESPANK_BAD_ARG;
	options[count++] = option;
	return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	(void)spank;
	(void)overwrite;
	if (getenv("REFUSE") != NULL)
		return ESPANK_ERROR;
	printf("SPANK_%s=%s\n", name, value);
	return ESPANK_SUCCESS;
}

void slurm_error(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fputc('\n', stderr);
}

static int call(void *plugin, const char *name)
{
	int (*f)(spank_t, int, char **);

	*(void **)&f = dlsym(plugin, name);
	return f == NULL ? 0 : f(NULL, 0, NULL);
}

int main(int argc, char **argv)
{
	void *plugin = argc < 3 ? NULL : dlopen(argv[1], RTLD_NOW);

	if (plugin == NULL) {
		fprintf(stderr, "%s\n", argc < 3 ? "a plug-in and a context are missing" : dlerror());
		return 2;
	}
	context = strcmp(argv[2], "local") == 0       ? S_CTX_LOCAL
		  : strcmp(argv[2], "allocator") == 0 ? S_CTX_ALLOCATOR
		  : strcmp(argv[2], "remote") == 0    ? S_CTX_REMOTE
						      : S_CTX_SLURMD;
	if (call(plugin, "slurm_spank_init") != 0)
		return 1;
	printf("%d options\n", count);
	for (int i = 3; i < argc; i++) {
		char *value = strchr(argv[i], '=');

		for (int j = 0; value != NULL && j < count; j++) {
			size_t n = (size_t)(value - argv[i]);

			if (strncmp(options[j]->name, argv[i], n) == 0 && options[j]->name[n] == '\0' &&
			    options[j]->cb(options[j]->val, value + 1, context == S_CTX_REMOTE) != 0)
				return 1;
		}
	}
	return call(plugin, "slurm_spank_init_post_opt") == 0 ? 0 : 1;
}
