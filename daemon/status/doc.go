// Package status is what people see: status, explain, doctor, lists. It reads, and changes nothing.
package status
