//! Every bound of a session, with its arithmetic. A peer's number is a claim until it was compared with its bound.

use std::time::Duration;

/// Version of the frames and of the handshake.
pub const PROTOCOL_VERSION: u16 = 2;

/// Largest payload of a data frame: 2 ms on the wire at 1 Gb/s, 4,000 frames/s at 1 GB/s. The 1 KiB over 256 KiB is for
/// what goes before 64 pages, so that 64 pages travel together.
pub const CHUNK_BYTES_MAX: usize = (256 << 10) + 1024;
/// Smallest chunk that is worth a frame on a slow path: one TLS record.
pub const CHUNK_BYTES_MIN: usize = 16 << 10;
/// Most buffers in one chunk: what one gathered write takes without growing.
pub const CHUNK_PARTS_MAX: usize = 64;

/// Longest name of a target (`sockaddr_un` holds 107 bytes; names of other kinds may be longer).
pub const DESTINATION_BYTES_MAX: usize = 1024;
/// Longest reason in a reset, refusal or goodbye.
pub const REASON_BYTES_MAX: usize = 1024;
/// Longest handshake or address list: 256 addresses with two names each, 64 bytes or less.
pub const HELLO_BYTES_MAX: usize = 32 << 10;
/// Addresses that one end may announce.
pub const ADDRESSES_MAX: usize = 256;
/// Longest name of a NIC: Linux' own have 15 bytes (IFNAMSIZ of `linux/if.h`).
pub const NIC_BYTES_MAX: usize = 32;
/// Longest probe of a path's packets: a little more than IP's largest packet.
pub const PROBE_BYTES_MAX: usize = 64 << 10;

/// Streams of one session that are open at once, for each side that opens: two thousand connections between two hosts
/// of a migration network, and migrations beside them. The other side refuses what is beyond its own bound.
pub const STREAMS_MAX: u32 = 2560;
/// No stream has this number or a higher one, so that stream numbers do not wrap.
pub const STREAM_NUMBER_MAX: u32 = u32::MAX - 4;
/// Most gaps between the received pieces of all streams of a session. An honest peer leaves about as many gaps as there
/// are frames on the way at once. A dishonest peer could leave a gap at every other byte of every window.
pub const GAPS_MAX: usize = 64 << 10;
/// Connections of one session: 16 paths with one control and seven data connections each.
pub const CONNECTIONS_MAX: usize = 128;

/// How many bytes may be sent on a stream before its first credit arrives.
pub const WINDOW_INITIAL: u64 = WINDOW_MIN;
/// Most bytes that one stream may have between its sender and its reader: 8 MiB hold 2 Gb/s for 32 ms.
pub const WINDOW_MAX: u64 = 8 << 20;
/// Most bytes that all streams of a session together hold at the receiver, split evenly among them, beyond
/// [`WINDOW_MIN`].
pub const WINDOW_SESSION: u64 = 64 << 20;
/// Least window of a stream, however many streams there are, so that earlier streams do not starve later ones: 160 MiB
/// for 5120 streams.
pub const WINDOW_MIN: u64 = 32 << 10;

/// Most frames that a connection holds, waiting to be sent or acknowledged: 16,384 small frames are some 2 MB. Data
/// stops at half of this number, which an application reaches that writes single bytes. Beyond this number the peer
/// evidently acknowledges nothing, and the connection is given up.
pub const FRAMES_MAX: usize = 16 << 10;

/// Most gaps between the frames that arrived on a connection whose link keeps no order. As many frames can overtake
/// each other as the link has room for: an RDMA link is to have 256 slots.
pub const OVERTAKEN_MAX: usize = 1024;

/// Most bytes of a stream in its whole life: 2^62, so that sums of two offsets cannot wrap.
pub const OFFSET_MAX: u64 = 1 << 62;

/// How many bytes a stream may hand over without a pause while others wait for room: two chunks, so that not every
/// chunk costs a change of threads.
pub const BURST_BYTES: usize = 2 * CHUNK_BYTES_MAX;

/// How many bytes may be on the way on a path before its rate is known.
pub const INFLIGHT_INITIAL: u64 = 64 << 10;
/// Least bytes that may be on the way on a path: three small chunks keep the path from running dry.
pub const INFLIGHT_MIN: u64 = 48 << 10;
/// Most bytes that may be on the way on a path: 10 Gb/s x 25 ms.
pub const INFLIGHT_MAX: u64 = 32 << 20;
/// Queueing time that a path is allowed beyond its round trip. It covers acknowledgements that are held back for
/// [`ACK_DELAY`] and threads that wait for a core. A control message may find this much queued before it on the wire.
pub const QUEUE_TIME_MAX: Duration = Duration::from_millis(8);
/// Queueing time that a path is allowed where acknowledgements come in bursts: as long as a busy receiver, or others'
/// traffic on the way back, holds them up.
pub const BURST_TIME_MAX: Duration = Duration::from_millis(32);
/// Most queueing on a path, in bytes: two gatherings of acknowledgements ([`ACK_BYTES`]). What is on the way is kept
/// until it is acknowledged; more than this falls out of the cores' caches and costs a fast path a quarter of its
/// speed.
pub const QUEUE_BYTES_MAX: u64 = 2 << 20;
/// How long acknowledgements are gathered at most.
pub const ACK_DELAY: Duration = Duration::from_millis(4);
/// How many unacknowledged bytes end the gathering early.
pub const ACK_BYTES: u64 = 1 << 20;

/// A stream that sends bursts of at most this many bytes is small and urgent: it never waits behind bulk.
pub const URGENT_BYTES: usize = 32 << 10;
/// How long a stream's past bytes count against its being urgent.
pub const URGENT_DECAY_TIME: Duration = Duration::from_millis(100);
/// Bytes within [`URGENT_DECAY_TIME`] that make a stream bulk.
pub const URGENT_RECENT_BYTES: u64 = 128 << 10;
/// Over how many paths an urgent frame goes at once, so that the loss of one path costs nothing.
pub const URGENT_COPIES: usize = 2;

/// A path below this share of all paths' rate is kept for control and as a spare, unless it is faster than
/// [`SPARE_RATE_MAX`]: what it would add is less than what waiting for its chunks costs.
pub const SPARE_SHARE_MAX: f64 = 0.02;
/// A path faster than this (bytes/s) is never a spare: a small chunk takes it less than 6 ms.
pub const SPARE_RATE_MAX: f64 = 3e6;
/// A spare or idle path is measured again after this time.
pub const PATH_REMEASURE_PERIOD: Duration = Duration::from_secs(1);

/// The period with which round trips are measured and silence is noticed.
pub const PING_PERIOD: Duration = Duration::from_millis(200);
/// If nothing is acknowledged for this long (or for four round trips), what is on the way goes to other connections.
pub const STALL_TIME: Duration = Duration::from_millis(300);
/// A connection that stalls for this long is closed, to be dialled again.
pub const STALLED_CONNECTION_TIME_MAX: Duration = Duration::from_millis(1500);
/// If the peer closed every connection and does not come back within this time, it is gone.
pub const PEER_CLOSED_WAIT: Duration = Duration::from_secs(5);
/// How long a session outlives the loss of all its paths, by default.
pub const OUTAGE_TIME_DEFAULT: Duration = Duration::from_secs(60);
