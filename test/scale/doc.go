// Command scale measures what many nodes cost one Prometheus and one Ansible controller: 'go run ./test/scale'. It measures one virtual
// node with 8 GPUs, its metrics and its applies, and multiplies. With -prometheus and -ansible it measures these programs too, with
// as many targets and hosts as this host is good for; without them it says what it left out.
package main
