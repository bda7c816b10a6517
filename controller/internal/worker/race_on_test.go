//go:build race

package worker

// outageNodes is fewer here: the race detector ends itself ("tsan_rtl.cpp: CHECK failed") after so many goroutines of timers.
const outageNodes = 500
