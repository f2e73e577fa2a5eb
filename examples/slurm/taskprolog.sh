#!/bin/sh
# TaskProlog of Slurm: gives each task the UUIDs of its GPUs and the environment of the lease of its job, and says in its output why the job
# has no lease. It runs as the user of the job, and never fails: the task would.
command -v gpushare >/dev/null || PATH=$PATH:/usr/local/bin:/usr/bin
timeout -s KILL 2 gpushare slurm task-prolog 2>/dev/null
exit 0
