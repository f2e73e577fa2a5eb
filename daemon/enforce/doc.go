// Package enforce carries out the quotas of GPU memory and GPU time. Package quota makes the decisions.
package enforce
