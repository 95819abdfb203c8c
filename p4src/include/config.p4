/*
 * Compile-time options of the program.
 *
 *   -DLANES=256           lanes of 32 bits in a packet: 32 to 352, a multiple of 32
 *   -DSLOTS=4096          aggregation slots: a power of two
 *   -DMAX_HOPS=10         entries of a hop stack: 2 to 255, and as many as LANES leave room for
 *   -DCPU_PORT=510        the controller's port, as given to the switch
 *   -DPER_LANE_REGISTERS  one register a lane instead of wide words (lanes_*.p4): the same
 *                         packets, but 2 to 3 times slower on BMv2
 */
#ifndef HOPSUM_CONFIG_P4_
#define HOPSUM_CONFIG_P4_

#ifndef LANES
#define LANES 256
#endif

#ifndef SLOTS
#define SLOTS 4096
#endif

// The switches of a path, and the server's entry. Ten suffice for Clos networks and dragonflies.
#ifndef MAX_HOPS
#define MAX_HOPS 10
#endif

#ifndef CPU_PORT
#define CPU_PORT 510
#endif

#if LANES < 32 || LANES > 352 || LANES % 32 != 0
#error "LANES: expected a multiple of 32 from 32 to 352 (frames must fit a 1500-byte MTU)"
#endif

#if SLOTS < 1 || (SLOTS & (SLOTS - 1)) != 0
#error "SLOTS: expected a power of two (slot numbers are masked, never compared)"
#endif

#if MAX_HOPS < 2 || MAX_HOPS > 255 || 4 * (MAX_HOPS + LANES) > 1452
#error "MAX_HOPS: expected 2 to 255, and 4 * (MAX_HOPS + LANES) of at most 1452 bytes (the MTU)"
#endif

// Table sizes. Admission has an entry for each (job, tree, port) of this switch.
#define ADMISSION_SIZE 4096
#define REPLICATION_SIZE 4096
#define ROUTE_SIZE 4096
#define L2_SIZE 4096
#define PORTS 512

#endif  // HOPSUM_CONFIG_P4_
