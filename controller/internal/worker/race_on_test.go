//go:build race

package worker

// outageNodes is fewer here: the race detector ends itself after so many timers of a synctest bubble (golang/go#78156).
const outageNodes, raceDetector = 500, true
