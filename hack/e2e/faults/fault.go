package faults

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pass is no fault: it forwards the request and hands the answer back.
func Pass(w http.ResponseWriter, _ *http.Request, forward func() (Answer, error)) {
	answer, err := forward()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	answer.write(w)
}

func (a Answer) write(w http.ResponseWriter) {
	for key, values := range a.Header {
		if key != "Content-Length" {
			w.Header()[key] = values
		}
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(a.Body)))
	w.WriteHeader(a.Code)
	_, _ = w.Write(a.Body)
}

// Status answers in place of the API server, as it would, with a code, a reason and a message;
// retryAfter of 0 is no such header.
func Status(code int, reason metav1.StatusReason, message string, retryAfter int) Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ func() (Answer, error)) {
		body, _ := json.Marshal(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
			Details: &metav1.StatusDetails{RetryAfterSeconds: int32(retryAfter)},
		})
		header := http.Header{"Content-Type": {"application/json"}}
		if retryAfter > 0 {
			header.Set("Retry-After", strconv.Itoa(retryAfter))
		}
		Answer{code, header, body}.write(w)
	}
}

// After lets the API server act on the request first, so that only its answer is lost.
func After(fault Fault) Fault {
	return func(w http.ResponseWriter, r *http.Request, forward func() (Answer, error)) {
		answer, err := forward()
		fault(w, r, func() (Answer, error) { return answer, err })
	}
}

// First makes a fault of the first n requests that it is set on; the others are forwarded.
func First(n int, fault Fault) Fault { return FirstElse(n, fault, Pass) }

// FirstElse makes one fault of the first n requests, and another of those after them.
func FirstElse(n int, fault, other Fault) Fault {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request, forward func() (Answer, error)) {
		mu.Lock()
		n--
		hit := n >= 0
		mu.Unlock()
		if hit {
			fault(w, r, forward)
			return
		}
		other(w, r, forward)
	}
}

type connKey struct{}

// Reset ends the connection with a TCP reset.
func Reset(_ http.ResponseWriter, r *http.Request, _ func() (Answer, error)) {
	if conn, ok := r.Context().Value(connKey{}).(*tls.Conn); ok {
		if tcp, ok := conn.NetConn().(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
			_ = tcp.Close()
		}
	}
	panic(http.ErrAbortHandler)
}

// Cut hands back the first half of the answer and then ends the connection.
func Cut(w http.ResponseWriter, r *http.Request, forward func() (Answer, error)) {
	answer, err := forward()
	if err != nil {
		Reset(w, r, forward)
	}
	w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
	w.Header().Set("Content-Length", strconv.Itoa(len(answer.Body)))
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body[:len(answer.Body)/2])
	if flusher, ok := w.(http.Flusher); ok {
		flusher.Flush()
	}
	panic(http.ErrAbortHandler)
}

// Never does not answer for as long as the client waits.
func Never(_ http.ResponseWriter, r *http.Request, _ func() (Answer, error)) {
	<-r.Context().Done()
}

// Gate holds the first request that comes to it.
type Gate struct {
	Arrived chan struct{} // closed when the request is held
	Gone    chan struct{} // closed when it is not held any more, whatever the reason
	open    chan struct{}
	once    sync.Once
	release sync.Once
}

// NewGate makes a gate that is closed.
func NewGate() *Gate {
	return &Gate{Arrived: make(chan struct{}), Gone: make(chan struct{}), open: make(chan struct{})}
}

// Open lets the request go on.
func (g *Gate) Open() { g.release.Do(func() { close(g.open) }) }

// Hold is the fault: a request whose client goes away while it is held is never forwarded. Behind
// After it is the answer that is held.
func (g *Gate) Hold(w http.ResponseWriter, r *http.Request, forward func() (Answer, error)) {
	held := false
	g.once.Do(func() { held = true })
	if held {
		close(g.Arrived)
		defer close(g.Gone)
		select {
		case <-g.open:
		case <-r.Context().Done():
			return
		}
	}
	Pass(w, r, forward)
}
