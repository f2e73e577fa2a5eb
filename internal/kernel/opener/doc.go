// Package opener says which user opened a file that a process has open: the kernel keeps that with the open file (f_cred), and shows it in
// no file of /proc. A descriptor that was passed over a socket has the user who opened it, not the one who received it.
package opener
