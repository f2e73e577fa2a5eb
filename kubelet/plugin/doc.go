// Package plugin connects gpushared and the kubelet: it reads the node, publishes it as long as it changes, prepares claims, and reports
// health. What is published and what a claim needs is decided in packages publish, claims and health.
package plugin
