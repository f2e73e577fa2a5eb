// Package health says how the devices of a node are, as the kubelet shows it in the status of pods. It is pure.
package health
