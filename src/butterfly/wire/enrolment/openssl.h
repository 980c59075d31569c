// OpenSSL's objects with owners, and its errors as sentences. Only the .cc files of this module include this.
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace butterfly {

template <auto Free>
struct OpensslFree {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

using KeyPtr = std::unique_ptr<EVP_PKEY, OpensslFree<EVP_PKEY_free>>;
using X509Ptr = std::unique_ptr<X509, OpensslFree<X509_free>>;
using RequestPtr = std::unique_ptr<X509_REQ, OpensslFree<X509_REQ_free>>;
using CrlPtr = std::unique_ptr<X509_CRL, OpensslFree<X509_CRL_free>>;
using BioPtr = std::unique_ptr<BIO, OpensslFree<BIO_free_all>>;
using SslPtr = std::unique_ptr<SSL, OpensslFree<SSL_free>>;

/// The newest error of this thread's queue, which is emptied.
std::string take_openssl_error();

}  // namespace butterfly
