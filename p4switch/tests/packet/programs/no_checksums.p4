// Empty checksum controls, for programs that have headers_t and meta_t.

control NoVerify(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control NoCompute(inout headers_t hdr, inout meta_t meta) {
    apply { }
}
