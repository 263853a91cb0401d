// The C door to Gloo: a full mesh of pairs, and messages between them. No exception passes through it.
//
// Gloo's own waits close every connection when their time is up, so that no wait here has a limit that matters: the
// caller interrupts it instead, looks around, and waits again.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

namespace {

// Ranks joined pair by pair. The addresses of the pairs travel through the caller's meeting place, not through a
// store of Gloo's.
class Mesh : public gloo::Context {
 public:
  Mesh(int rank, int size, const char* address, std::chrono::milliseconds limit) : gloo::Context(rank, size) {
    gloo::transport::tcp::attr attr;
    attr.hostname = address;
    device_ = gloo::transport::tcp::CreateDevice(attr);
    transportContext_ = device_->createContext(rank, size);
    transportContext_->setTimeout(limit);
    setTimeout(limit);
    for (int peer = 0; peer < size; peer++) {
      if (peer != rank) {
        transportContext_->createPair(peer);
      }
    }
  }

  std::vector<char> address(int peer) { return transportContext_->getPair(peer)->address().bytes(); }

  void connect(int peer, const std::vector<char>& address) { transportContext_->getPair(peer)->connect(address); }
};

struct Message {
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
  bool outgoing;
};

// Between two ranks messages of one direction are received in the order in which they were sent.
constexpr uint64_t kSlot = 0;

// What went wrong goes into `why`, which holds `room` bytes.
template <class Work>
bool done(char* why, size_t room, Work work) {
  try {
    work();
    return true;
  } catch (const std::exception& e) {
    std::strncpy(why, e.what(), room - 1);
  } catch (...) {
    std::strncpy(why, "an exception of an unknown kind", room - 1);
  }
  why[room - 1] = 0;
  return false;
}

}  // namespace

extern "C" {

// Listens at `address`; nobody is connected yet. Null if it fails.
void* phalanx_gloo_open(int rank, int size, const char* address, int64_t limit_ms, char* why, size_t room) {
  Mesh* mesh = nullptr;
  done(why, room, [&] { mesh = new Mesh(rank, size, address, std::chrono::milliseconds(limit_ms)); });
  return mesh;
}

// Where `peer` reaches this rank. Gives the length, 0 if it fails; no more than `space` bytes are written.
size_t phalanx_gloo_address(void* mesh, int peer, char* out, size_t space, char* why, size_t room) {
  size_t length = 0;
  done(why, room, [&] {
    auto bytes = static_cast<Mesh*>(mesh)->address(peer);
    std::memcpy(out, bytes.data(), std::min(space, bytes.size()));
    length = bytes.size();
  });
  return length;
}

// Connects with `peer`, which must do the same. Returns when it is done.
bool phalanx_gloo_connect(void* mesh, int peer, const char* address, size_t n, char* why, size_t room) {
  return done(why, room, [&] { static_cast<Mesh*>(mesh)->connect(peer, std::vector<char>(address, address + n)); });
}

// Closes all connections at once: what the others have not received yet is lost.
void phalanx_gloo_close(void* mesh) { delete static_cast<Mesh*>(mesh); }

// Begins to send to `peer` or to receive from it. The bytes are Gloo's until the message is dropped. Null if it fails.
void* phalanx_gloo_post(void* mesh, bool outgoing, int peer, void* bytes, size_t n, char* why, size_t room) {
  std::unique_ptr<Message> message;
  bool posted = done(why, room, [&] {
    message = std::make_unique<Message>(Message{static_cast<Mesh*>(mesh)->createUnboundBuffer(bytes, n), outgoing});
    outgoing ? message->buffer->send(peer, kSlot) : message->buffer->recv(peer, kSlot);
  });
  return posted ? message.release() : nullptr;
}

// 1 when the message has gone or come, 0 if the wait was interrupted, -1 if it fails.
int phalanx_gloo_wait(void* message, int64_t limit_ms, char* why, size_t room) {
  auto* m = static_cast<Message*>(message);
  bool complete = false;
  std::chrono::milliseconds limit(limit_ms);
  bool well = done(why, room, [&] { complete = m->outgoing ? m->buffer->waitSend(limit) : m->buffer->waitRecv(limit); });
  return well ? complete : -1;
}

// Makes the wait for `message`, now or the next one, return. Any thread may call it.
void phalanx_gloo_interrupt(void* message) {
  auto* m = static_cast<Message*>(message);
  m->outgoing ? m->buffer->abortWaitSend() : m->buffer->abortWaitRecv();
}

// Gives the bytes back, whether or not they have gone or come.
void phalanx_gloo_drop(void* message) { delete static_cast<Message*>(message); }

}
