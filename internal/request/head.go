package request

import (
	"net/http"
)

// mostHead is the limit of the head of a request in bytes: its first line, its headers and the empty line after them.
const mostHead = 16 << 10

// MaxHeader is the value of http.Server with which a connection is refused after mostHead bytes without the end of a head: package
// http allows 4 KiB more than this.
const MaxHeader = mostHead - 4<<10

// BoundsHead refuses what MaxHeader lets pass: package http does not count what arrived together with the request before it.
func BoundsHead(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if headSize(q) > mostHead {
			w.Header().Set("Connection", "close")
			http.Error(w, "431 Request Header Fields Too Large", http.StatusRequestHeaderFieldsTooLarge)
			return
		}
		h.ServeHTTP(w, q)
	})
}

// headSize is the size of a head without spaces that mean nothing.
func headSize(q *http.Request) int {
	n := len(q.Method) + len(" ") + len(q.RequestURI) + len(" HTTP/1.1\r\n") + len("\r\n")
	if q.Host != "" {
		n += len("Host: \r\n") + len(q.Host)
	}
	for key, values := range q.Header {
		for _, v := range values {
			n += len(key) + len(": \r\n") + len(v)
		}
	}
	return n
}
