// Package enforce carries out the quotas of GPU memory and GPU time. What is decided is decided in package quota.
package enforce
