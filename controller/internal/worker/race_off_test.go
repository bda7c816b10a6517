//go:build !race

package worker

// outageNodes is how many nodes fail in an outage.
const outageNodes, raceDetector = 5000, false
