package main

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

// diagnose tells why an endpoint does not answer, by a connection of its own: gRPC tells of most
// of this only that the context has ended. It returns "" if it finds nothing.
func diagnose(cfg *tls.Config, endpoint string, within time.Duration) string {
	scheme, addr, found := strings.Cut(endpoint, "://")
	if !found {
		scheme, addr = "", endpoint
	}
	if strings.HasPrefix(scheme, "unix") {
		return ""
	}
	asksForTLS := scheme == "https" || scheme == "" && cfg != nil
	dialer := &net.Dialer{Timeout: within}
	conn, err := dialer.Dial("tcp", addr)
	if err != nil {
		return fmt.Sprintf("cannot be reached: %v", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(within))
	host, _, _ := net.SplitHostPort(addr)
	if !asksForTLS {
		if tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).Handshake() != nil {
			return ""
		}
		return "it wants TLS, and was asked without: use https:// or --cacert"
	}
	if cfg == nil {
		cfg = &tls.Config{}
	}
	cfg = cfg.Clone()
	cfg.ServerName, cfg.NextProtos = cmp.Or(cfg.ServerName, host), []string{"h2"}
	secured := tls.Client(conn, cfg)
	err = secured.Handshake()
	if err == nil {
		// A server of TLS 1.3 looks at the client's certificate after the handshake.
		_ = conn.SetDeadline(time.Now().Add(min(within, time.Second)))
		_, err = secured.Read(make([]byte, 1))
	}
	if _, unverified := errors.AsType[*tls.CertificateVerificationError](err); unverified {
		return fmt.Sprintf("its certificate is not believed: %v", err)
	}
	_, alert := errors.AsType[tls.AlertError](err)
	opErr, is := errors.AsType[*net.OpError](err)
	switch {
	case alert || is && opErr.Op == "remote error":
		return fmt.Sprintf("it refuses the client's certificate, or wants one (--cert, --key): %v", err)
	case err == nil || errors.Is(err, os.ErrDeadlineExceeded):
		return ""
	case speaksPlainly(dialer, addr):
		return "it does not speak TLS: use http://, and no --cacert and --cert"
	}
	return fmt.Sprintf("TLS: %v", err)
}

// speaksPlainly reports whether a server answers HTTP/2 without TLS: its first frame is SETTINGS,
// whatever it is told (RFC 9113, 3.4).
func speaksPlainly(dialer *net.Dialer, addr string) bool {
	conn, err := dialer.Dial("tcp", addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(dialer.Timeout))
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	const settings = 4
	frame := [9]byte{3: settings} // the header of one without any
	if _, err := conn.Write(append([]byte(preface), frame[:]...)); err != nil {
		return false
	}
	_, err = io.ReadFull(conn, frame[:])
	return err == nil && frame[3] == settings
}
