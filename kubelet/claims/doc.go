// Package claims prepares claims of Kubernetes: each is one keyed lease of gpushared, and one CDI file with the devices of that lease.
//
// It keeps no file of its own: what is prepared are the leases of gpushared whose key names the claim, and the CDI files. So a claim can
// be prepared and unprepared again after a kill at any point, of the plug-in, the kubelet or gpushared.
package claims
