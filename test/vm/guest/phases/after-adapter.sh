# Which properties that the tests of package systemd set are in force after a boot: each row of the table, by its effect.
# checks: table

. /opt/lab/guest/phases/adapter.sh

check_table() { adapter_test TestHostTableAfterBoot rebooted; }
