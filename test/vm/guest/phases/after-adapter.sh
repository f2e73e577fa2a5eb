# What a boot left of what the adapter's tests set: each row of the table of properties, by its effect.
# checks: table

. /opt/lab/guest/phases/adapter.sh

check_table() { adapter_test TestHostTableAfterBoot rebooted; }
