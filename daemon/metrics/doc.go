// Package metrics serves the status in the text format of Prometheus: on the socket of the API, and on a TCP address if the
// settings have one. It computes every value from the status and from counters in memory when it is read, so a scrape calls no
// driver. It measures nothing and changes nothing.
package metrics
