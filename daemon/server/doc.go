// Package server is the socket: connections, who is at the other end and in which role, the limits of each user, and the
// way an error is answered. Handlers stay with what they are about; the table of routes is the wiring's.
package server
