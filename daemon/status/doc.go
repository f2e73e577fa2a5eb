// Package status answers the requests that only read: status, explain, doctor, plan and the lists. It changes nothing.
package status
